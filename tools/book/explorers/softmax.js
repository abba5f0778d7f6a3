// Online softmax: tile after tile is merged into (m, s); what has been summed shrinks when a larger maximum comes.
Explorer.at("softmax", div => {
    const WIDTH = 44, HEIGHT = 110;
    let x, done, m, s, steps;
    const field = Explorer.element("input", {name: "scores", value: "1, 3, 2, 4, 0, 5", "aria-label": "scores"});
    const picture = Explorer.element("svg", {role: "img", style: "max-width: 16rem"}), said = Explorer.said(), table = Explorer.element("table", {class: "state"});
    const digits = value => (Number.isFinite(value) ? value.toFixed(4) : value > 0 ? "∞" : "−∞");
    const weight = (value, maximum) => Math.exp(maximum === -Infinity ? value : value - maximum); // nothing yet: no maximum to subtract

    function merge() {
        const size = Number(div.querySelector("[name=size]").value);
        const tile = x.slice(done, done + size);
        if (tile.length === 0) return;
        const own = Math.max(...tile), sum = tile.reduce((t, value) => t + Math.exp(value - own), 0);
        const larger = Math.max(m, own), factor = m === -Infinity ? 0 : Math.exp(m - larger);
        s = s * factor + sum * Math.exp(own - larger);
        m = larger;
        done += tile.length;
        steps.push([tile.join(", "), `(${digits(own)}, ${digits(sum)})`, digits(factor), `(${digits(m)}, ${digits(s)})`]);
        show();
    }

    function show() {
        const head = ["tile", "its (m, s)", "× what was", "merged (m, s)"];
        table.replaceChildren(Explorer.element("tr", {}, ...head.map(text => Explorer.element("th", {}, text))),
            ...steps.map(step => Explorer.element("tr", {}, ...step.map(text => Explorer.element("td", {}, text)))));
        picture.setAttribute("viewBox", `0 0 ${Math.max(x.length, 6) * WIDTH} ${HEIGHT + 20}`);
        picture.setAttribute("aria-label", "What each score adds to s");
        picture.replaceChildren(...x.flatMap((value, i) => {
            const height = i < done ? weight(value, m) * HEIGHT : 0;
            return [Explorer.element("rect", {class: "read", x: i * WIDTH + 6, y: HEIGHT - height, width: WIDTH - 12, height}),
                Explorer.element("text", {x: (i + 0.5) * WIDTH, y: HEIGHT + 15}, value)];
        }));
        const largest = Math.max(...x), all = x.reduce((t, value) => t + Math.exp(value - largest), 0);
        said.textContent = done < x.length ? `${done} of ${x.length} scores merged: m = ${digits(m)}, s = ${digits(s)}.`
            : `All merged: s = ${digits(s)}; in one go, from the maximum ${digits(largest)}: ${digits(all)}.`;
    }

    function restart() {
        x = field.value.split(/[\s,]+/).filter(Boolean).map(Number).filter(Number.isFinite).slice(0, 16);
        if (x.length === 0) x = [0];
        [done, m, s, steps] = [0, -Infinity, 0, []];
        show();
    }

    field.addEventListener("change", restart);
    div.append(Explorer.element("div", {class: "controls"}, Explorer.element("label", {}, "scores ", field),
        Explorer.choice("a tile", "size", [[1, "1"], [2, "2"], [3, "3"], [4, "4"]], 2, restart),
        Explorer.button("merge the next tile", "merge", merge), Explorer.button("start again", "restart", restart)), picture, said, table);
    restart();
});
