// The views of the page, in the order of their links. A view is a module of its own, which is loaded when it is opened:
// its `mount(root, app, signal)` fills `root` and app.bar, until `signal` says that one leaves it.

export const VIEWS = [
  { name: "chat", title: "Chat", href: "/#chat", load: () => import("./chat/view.js") },
  { name: "compare", title: "Compare", href: "/#compare", load: () => import("./compare/view.js") },
  { name: "box", title: "Box", href: "/#box", load: () => import("./box/view.js") },
  { name: "docs", title: "API", href: "/docs", load: () => import("./docs/view.js") },
];
