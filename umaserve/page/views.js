// The views of the page, in the order of their links. A view is a module of its own, which is loaded when it is opened:
// its `mount(root, app)` fills `root` and app.bar, and returns (or promises) what ends it again.

export const VIEWS = [{ name: "chat", title: "Chat", load: () => import("./chat/view.js") }];
