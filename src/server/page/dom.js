// Elements are built from nodes and text alone: no string ever becomes markup.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

export const byId = (id) => document.getElementById(id);

// A button that copies, and says that it did.
export function copyButton(getText) {
  return el("button", {
    type: "button",
    class: "quiet",
    onclick: async (event) => {
      const button = event.currentTarget;
      button.textContent = (await copyText(getText())) ? "Copied" : "Not allowed";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    },
  }, "Copy");
}

// Browsers give the clipboard to secure pages only; a plain http page goes the old way.
async function copyText(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  const area = el("textarea", { class: "off-screen" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
