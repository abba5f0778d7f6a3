// A file's page: the scheme of the page that shows it, and the same place in the other steps.
if (location.search) document.documentElement.className = location.search.slice(1);
addEventListener("DOMContentLoaded", () => {
    for (const link of document.querySelectorAll("nav a"))
        link.addEventListener("click", () => { link.href = link.getAttribute("href").split(/[?#]/)[0] + location.search + location.hash; });
});
