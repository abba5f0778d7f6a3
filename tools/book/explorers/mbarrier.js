// An mbarrier of one arrival a phase, for a stage of 16 + 32 KB: what each instruction does to it, and what a wait would find.
Explorer.at("mbarrier", div => {
    const COUNT = 1, A = 16384, B = 32768;
    let phase, arrivals, bytes, log;
    const state = Explorer.element("table", {class: "state"}), said = Explorer.said();
    const phases = Explorer.element("ol", {class: "phases"});

    // What happens at a button: so many arrivals come, and so many more bytes are missing, or fewer.
    function step(text, coming, more) {
        return () => {
            const before = phase;
            if (coming > arrivals) {
                log.push(`${text}: an over-arrival, for which the simulated GPU stops: phase ${phase} lacks bytes, and no arrival`);
                return show();
            }
            arrivals -= coming;
            bytes += more;
            if (arrivals === 0 && bytes === 0) { // both: the phase ends, the next begins at once
                phase++;
                arrivals = COUNT;
            }
            log.push(`${text}: ` + (phase > before ? `phase ${before} ends, phase ${phase} begins` : `phase ${phase} goes on, ${missing()}`));
            show();
        };
    }

    function missing() {
        const early = bytes < 0 ? `; ${-bytes} bytes have landed that nobody has announced` : "";
        return `${arrivals} of ${COUNT} arrivals and ${Math.max(bytes, 0)} bytes missing${early}`;
    }

    function passes(parity) { return phase % 2 !== parity; } // a phase of this parity has ended: the one before

    function show() {
        const rows = [["phase under way", `${phase}, parity ${phase % 2}`], ["arrivals missing", arrivals], ["bytes missing", bytes],
            ["mbarrier_wait(bar, 0)", passes(0) ? "passes" : "waits"], ["mbarrier_wait(bar, 1)", passes(1) ? "passes" : "waits"]];
        state.replaceChildren(...rows.map(([name, value]) =>
            Explorer.element("tr", {}, Explorer.element("th", {}, name), Explorer.element("td", {"data-of": name}, value))));
        phases.replaceChildren(...log.map(line => Explorer.element("li", {}, line)));
        said.textContent = log.at(-1) ?? "A new barrier: a wait for 0 waits, a wait for 1 passes.";
    }

    function restart() {
        [phase, arrivals, bytes, log] = [0, COUNT, 0, []];
        show();
    }

    div.append(Explorer.element("div", {class: "controls"},
        Explorer.button("arrive, expect 48 KB", "expect", step("arrive.expect_tx", 1, A + B)),
        Explorer.button("A lands, 16 KB", "A", step("A lands", 0, -A)),
        Explorer.button("B lands, 32 KB", "B", step("B lands", 0, -B)),
        Explorer.button("arrive, expect nothing", "arrive", step("arrive", 1, 0)),
        Explorer.button("start again", "restart", restart)), state, said, phases);
    restart();
});
