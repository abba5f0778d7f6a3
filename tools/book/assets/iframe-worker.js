// A page opened from disk may start no Worker, which the search runs in. Here an invisible frame is one: the script's messages
// to itself are its messages to the page. The search script looks for the name IFrameWorker in its parent.
if (location.protocol === "file:") {
    window.Worker = window.IFrameWorker = class extends EventTarget {
        constructor(url) {
            super();
            const frame = document.createElement("iframe");
            frame.hidden = true;
            this.ready = new Promise(resolve => frame.addEventListener("load", () => resolve(frame.contentWindow), {once: true}));
            this.receive = data => {
                const event = new MessageEvent("message", {data});
                this.dispatchEvent(event);
                this.onmessage?.(event);
            };
            IFrameWorker.started.push(this);
            const number = IFrameWorker.started.length - 1;
            frame.srcdoc = `<script>postMessage = data => parent.IFrameWorker.started[${number}].receive(data)</script>` +
                `<script src="${new URL(url, location)}"></script>`;
            document.body.append(frame);
        }

        postMessage(data) {
            this.ready.then(frame => frame.dispatchEvent(new MessageEvent("message", {data})));
        }
    };
    window.IFrameWorker.started = [];
}
