// The views of the page, in the order of their links. A view is a module of its own, which is loaded with its style when
// it is opened: its `mount(root, app)` fills `root` and app.bar, and returns (or promises) what ends it again.

export const VIEWS = [
  { name: "chat", title: "Chat", href: "/#chat", load: () => import("./chat/view.js") },
  { name: "compare", title: "Compare", href: "/#compare", style: "/page/compare/style.css", load: () => import("./compare/view.js") },
  { name: "box", title: "Box", href: "/#box", style: "/page/box/style.css", load: () => import("./box/view.js") },
  { name: "docs", title: "API", href: "/docs", style: "/page/docs/style.css", load: () => import("./docs/view.js") },
];
