// A name of the code shows its definition at the text's side; without this script it is an ordinary link to its page.
(() => {
    const panel = document.createElement("aside");
    panel.id = "code-panel";
    panel.hidden = true;
    panel.setAttribute("aria-label", "Code");
    const close = document.createElement("button");
    close.textContent = "close ✕";
    panel.append(close);
    document.body.append(panel);
    let shown = null; // the link whose code is shown

    function show(link) {
        if (shown) shown.removeAttribute("aria-expanded");
        panel.querySelector("iframe")?.remove(); // a new one, so that the history keeps to the text's pages
        shown = link;
        panel.hidden = !link;
        document.body.classList.toggle("with-code", Boolean(link));
        if (!link) return;
        link.setAttribute("aria-expanded", "true");
        const scheme = document.body.getAttribute("data-md-color-scheme");
        const [page, place] = link.href.split("#");
        const frame = document.createElement("iframe");
        frame.title = link.textContent;
        frame.src = `${page}?${scheme}#${place}`;
        panel.append(frame);
        link.scrollIntoView({block: innerWidth < 960 ? "start" : "nearest"}); // a narrow window has the panel below
    }

    close.addEventListener("click", () => { const link = shown; show(null); link.focus(); });
    document.addEventListener("keydown", event => { if (event.key === "Escape" && shown) close.click(); });
    document.addEventListener("click", event => {
        const link = event.target.closest(".code-ref");
        if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        show(link === shown ? null : link);
    });
})();
