// A tile of 8 rows in the 32 banks: how long its rows are, how it is swizzled, what 8 lanes read, 16 bytes each.
Explorer.at("swizzle", div => {
    const ROWS = 8, GROUPS = 8, CELL = 56, HEIGHT = 26, LEFT = 64, TOP = 24; // a group is four banks, 16 bytes
    const value = name => Number(div.querySelector(`[name=${name}]`).value);
    const controls = Explorer.element("div", {class: "controls"},
        Explorer.choice("row bytes", "row_bytes", [[32, "32"], [64, "64"], [128, "128"], [144, "144, padded"]], 128, draw),
        Explorer.choice("swizzled bits", "bits", [[0, "0, plain"], [1, "1"], [2, "2"], [3, "3"]], 0, draw),
        Explorer.choice("8 lanes read", "pattern", [["column", "a chunk of each row"], ["row", "8 chunks in a row"]], "column", draw),
        Explorer.choice("from", "from", [...Array(GROUPS).keys()].map(n => [n, n]), 0, draw));
    const picture = Explorer.element("svg", {role: "img"}), said = Explorer.said();
    div.append(controls, picture, said);

    // Where chunk `chunk` of the tile, counted through all rows and their padding, is kept: its number of 16 bytes.
    function place(chunk, bits) {
        return Math.floor(chunk / 64) * 64 + LAYOUTS.swizzle[bits][chunk % 64];
    }

    function draw() {
        const chunks = value("row_bytes") / 16, used = Math.min(chunks, GROUPS); // the ninth chunk is padding
        const from = value("from"), isColumn = div.querySelector("[name=pattern]").value === "column";
        const read = [];
        for (let lane = 0; lane < 8; lane++) {
            const n = from * used + lane; // of the chunks that hold data
            read.push(isColumn ? lane * chunks + from % used : Math.floor(n / used) % ROWS * chunks + n % used);
        }
        const asked = Array(GROUPS).fill(0);
        for (const chunk of read) asked[place(chunk, value("bits")) % GROUPS]++;

        const parts = [Explorer.element("text", {x: LEFT / 2, y: TOP - 8}, "banks")];
        const lines = Math.ceil(ROWS * chunks / GROUPS);
        for (let group = 0; group < GROUPS; group++)
            parts.push(Explorer.element("text", {x: LEFT + (group + 0.5) * CELL, y: TOP - 8}, `${group * 4}–${group * 4 + 3}`));
        for (let line = 0; line < lines; line++)
            parts.push(Explorer.element("text", {x: LEFT / 2, y: TOP + (line + 0.7) * HEIGHT}, `byte ${line * 128}`));
        for (let chunk = 0; chunk < ROWS * chunks; chunk++) {
            const at = place(chunk, value("bits")), group = at % GROUPS, isRead = read.includes(chunk);
            const kind = chunk % chunks >= used ? "padding" : !isRead ? "kept" : asked[group] > 1 ? "conflict" : "read";
            const x = LEFT + group * CELL, y = TOP + Math.floor(at / GROUPS) * HEIGHT;
            parts.push(Explorer.element("g", {class: kind, "data-chunk": chunk, "data-group": group},
                Explorer.element("rect", {x, y, width: CELL - 2, height: HEIGHT - 2}),
                Explorer.element("text", {x: x + CELL / 2, y: y + 0.7 * HEIGHT},
                    kind === "padding" ? "–" : `${Math.floor(chunk / chunks)}.${chunk % chunks}`)));
        }
        picture.setAttribute("viewBox", `0 0 ${LEFT + GROUPS * CELL} ${TOP + lines * HEIGHT}`);
        picture.setAttribute("aria-label", "Which row.chunk lies in which four banks");
        picture.replaceChildren(...parts);
        const most = Math.max(...asked);
        said.textContent = `${most} wavefront${most > 1 ? "s" : ""}: ` + (most > 1
            ? `banks ${asked.indexOf(most) * 4} to ${asked.indexOf(most) * 4 + 3} are asked for ${most} chunks, one after the other.`
            : "each of the 8 lanes has four banks of its own.") + " (3.1 is chunk 1 of row 3.)";
    }
    draw();
});
