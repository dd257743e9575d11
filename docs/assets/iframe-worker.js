// Browsers start no worker on a page that was opened from a folder. There the search, which asks for
// one, gets a hidden frame that offers the same few calls: postMessage there and back, and terminate.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = []; // what is said before the frame's script listens
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><html><body></body></html>");
      inside.document.close();
      inside.postMessage = data => this.say(this, data);
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = () => {
        const early = this.waiting;
        this.waiting = null;
        early.forEach(data => this.say(inside, data));
      };
      inside.document.body.appendChild(script);
    }
    say(to, data) {
      setTimeout(() => {
        const event = new MessageEvent("message", { data });
        to.dispatchEvent(event);
        if (to === this && this.onmessage) this.onmessage(event);
      });
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.say(this.frame.contentWindow, data);
    }
    terminate() { this.frame.remove(); }
  };
}
