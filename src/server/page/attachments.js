// Pictures and videos of the next message: chosen, pasted or dropped, shown small, each with a button that takes it away.
//
// An attachment: {kind: "image" | "video", name, url}, the url a data: URL; one that the storage had no room for has none.
import { byId, el } from "./dom.js";

const largestSide = 2016; // the server makes larger ones as small as this
const shrinkFrom = 1_500_000; // bytes
const largestFile = 40_000_000; // of a video, or of a picture that the browser cannot read

export class Attachments {
  // `say(text)`: a line for the person.
  constructor(say) {
    this.say = say;
    this.list = [];
    this.takes = { image: false, video: false, why: "" };
    byId("attach").addEventListener("click", () => byId("files").click());
    byId("files").addEventListener("change", () => {
      this.add(byId("files").files);
      byId("files").value = "";
    });
    byId("input").addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      if (files.length === 0) return;
      event.preventDefault();
      this.add(files);
    });
    const main = document.querySelector("main");
    main.addEventListener("dragover", (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      main.classList.add("dropping");
    });
    main.addEventListener("dragleave", (event) => {
      if (!main.contains(event.relatedTarget)) main.classList.remove("dropping");
    });
    main.addEventListener("drop", (event) => {
      main.classList.remove("dropping");
      if (event.dataTransfer.files.length === 0) return;
      event.preventDefault();
      this.add(event.dataTransfer.files);
    });
    this.setTakes({ image: false, video: false, why: "The server is not known yet." });
  }

  // What the model takes; `why` not, where it takes nothing.
  setTakes(takes) {
    this.takes = takes;
    const any = takes.image || takes.video;
    byId("attach").disabled = !any;
    byId("attach").title = any ? `Attach ${takes.video ? "pictures or videos" : "pictures"}` : takes.why;
    byId("files").accept = [takes.image && "image/*", takes.video && "video/*"].filter(Boolean).join(",");
  }

  async add(files) {
    for (const file of files) {
      const kind = file.type.startsWith("video/") ? "video" : "image";
      if (!this.takes[kind]) {
        this.say(this.takes.why || `This model takes no ${kind}s.`);
        continue;
      }
      try {
        this.list.push({ kind, name: file.name || kind, url: kind === "image" ? await imageUrl(file) : await fileUrl(file) });
      } catch (problem) {
        this.say(`${file.name}: ${problem.message}`);
      }
    }
    this.show();
  }

  set(list) {
    this.list = list.filter((attachment) => attachment.url);
    this.show();
  }

  // Gives them away.
  take() {
    const list = this.list;
    this.list = [];
    this.show();
    return list;
  }

  show() {
    byId("attachments").hidden = this.list.length === 0;
    byId("attachments").replaceChildren(...this.list.map((attachment, i) =>
      el("span", { class: "attached" }, thumbnail(attachment),
        el("button", { type: "button", class: "attached-remove", "aria-label": `Remove ${attachment.name}`,
          onclick: () => {
            this.list.splice(i, 1);
            this.show();
          } }, "×"))));
  }
}

export function thumbnail({ kind, name, url }) {
  if (kind === "image" && url) return el("img", { src: url, alt: name, title: name, class: "thumbnail" });
  return el("span", { class: "thumbnail file", title: url ? name : `${name} (not kept: the storage was full)` },
    kind === "image" ? `🖼 ${name}` : `▶ ${name}`);
}

function fileUrl(file) {
  if (file.size > largestFile) return Promise.reject(new Error(`larger than ${largestFile / 1e6} MB`));
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Error("cannot be read")));
    reader.readAsDataURL(file);
  });
}

// A large picture is made as small here as the server would make it.
async function imageUrl(file) {
  if (file.size < shrinkFrom) return fileUrl(file);
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    return fileUrl(file); // perhaps the server can read it
  }
  const scale = Math.min(1, largestSide / Math.max(picture.width, picture.height));
  const canvas = el("canvas", { width: String(Math.max(1, Math.round(picture.width * scale))),
    height: String(Math.max(1, Math.round(picture.height * scale))) });
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  return canvas.toDataURL("image/jpeg", 0.92);
}
