// What the explorers are built of: elements, controls, and the place in the page where one goes.
const Explorer = {
    // Calls build(div) where the page has this explorer.
    at(name, build) {
        const div = document.getElementById("explorer-" + name);
        if (!div) return;
        div.replaceChildren();
        build(div);
    },

    element(tag, attributes = {}, ...children) {
        const isSvg = ["svg", "g", "rect", "text", "line", "title"].includes(tag);
        const element = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
        for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
        element.append(...children);
        return element;
    },

    // A choice with its label; options are [value, text].
    choice(label, name, options, chosen, changed) {
        const select = this.element("select", {name}, ...options.map(([value, text]) => this.element("option", {value}, text)));
        select.value = chosen;
        select.addEventListener("change", changed);
        return this.element("label", {}, label + " ", select);
    },

    button(text, name, pressed) {
        const button = this.element("button", {type: "button", name, class: "md-button"}, text);
        button.addEventListener("click", pressed);
        return button;
    },

    // A line that a screen reader speaks when it changes.
    said() { return this.element("p", {class: "said", role: "status"}); },
};
