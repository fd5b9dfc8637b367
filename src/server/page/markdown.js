// Markdown as DOM nodes. What the model wrote is only ever text in them, links go to http, https and mailto alone, and
// pictures are not loaded. The work is linear in the text, whatever it holds.
import { copyButton, el } from "./dom.js";

const deepest = 12; // nested quotes, lists and emphasis; deeper ones stay text

const rendered = new WeakMap(); // container -> the sources of its blocks

// Brings `container` up to date. Blocks that did not change keep their nodes, so a reply may be rendered as it grows.
export function renderMarkdown(container, text) {
  const blocks = parseBlocks(text.split("\n"), 0);
  const before = rendered.get(container) ?? [];
  let kept = 0;
  while (kept < before.length && kept < blocks.length && before[kept] === blocks[kept].source) ++kept;
  while (container.childNodes.length > kept) container.lastChild.remove();
  for (const block of blocks.slice(kept)) container.append(renderBlock(block, 0));
  rendered.set(container, blocks.map((block) => block.source));
}

// --- blocks

const listMarker = /^(\s*)([-*+]|\d{1,9}[.)])(?:\s+|$)/;
const fenceStart = /^\s{0,3}(`{3,}|~{3,})([^`]*)$/;

const isBlank = (line) => line.trim() === "";
const isQuote = (line) => /^\s{0,3}>/.test(line);

function isRule(line) {
  const bare = line.replace(/\s/g, "");
  return bare.length >= 3 && "-*_".includes(bare[0]) && bare === bare[0].repeat(bare.length);
}

function headingOf(line) {
  const start = /^\s{0,3}(#{1,6})(?:\s|$)/.exec(line);
  if (!start) return null;
  let text = line.slice(start[0].length).trim();
  const end = text.length - (/#+$/.exec(text.slice(-40))?.[0].length ?? 0);
  if (end < text.length && (end === 0 || text[end - 1] === " ")) text = text.slice(0, end).trim();
  return { level: start[1].length, text };
}

function cellsOf(line) {
  const cells = [];
  let cell = "";
  for (let i = 0; i < line.length; ++i) {
    if (line[i] === "\\" && line[i + 1] === "|") cell += line[++i];
    else if (line[i] === "|") cells.push(cell.trim()), (cell = "");
    else cell += line[i];
  }
  cells.push(cell.trim());
  if (cells.length > 1 && cells[0] === "") cells.shift();
  if (cells.length > 1 && cells.at(-1) === "") cells.pop();
  return cells;
}

function alignmentsOf(line) {
  if (line === undefined || !line.includes("-") || !/^[\s|:-]+$/.test(line)) return null;
  const cells = cellsOf(line);
  if (!cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return cells.map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left"));
}

const isTable = (lines, i) => lines[i].includes("|") && alignmentsOf(lines[i + 1]) !== null;

function startsBlock(lines, i) {
  const line = lines[i];
  return isBlank(line) || fenceStart.test(line) || headingOf(line) !== null || isRule(line) || isQuote(line) ||
    listMarker.test(line) || isTable(lines, i);
}

// Each block is {kind, source, ...}; equal sources render equally.
function parseBlocks(lines, depth) {
  const blocks = [];
  let i = 0;
  const add = (kind, from, fields) => {
    blocks.push({ kind, source: `${kind}\n${lines.slice(from, i).join("\n")}`, ...fields });
  };
  while (i < lines.length) {
    const from = i;
    const line = lines[i];
    if (isBlank(line)) {
      ++i;
      continue;
    }
    const fence = fenceStart.exec(line);
    if (fence) {
      const indent = line.length - line.trimStart().length;
      const code = [];
      for (++i; i < lines.length; ++i) {
        const trimmed = lines[i].trim();
        if (trimmed.startsWith(fence[1]) && trimmed === fence[1][0].repeat(trimmed.length)) break;
        const own = lines[i].length - lines[i].trimStart().length;
        code.push(lines[i].slice(Math.min(indent, own)));
      }
      const closed = i < lines.length;
      if (closed) ++i;
      add("code", from, { language: fence[2].trim().split(/\s/)[0], text: code.join("\n") });
      continue;
    }
    const heading = headingOf(line);
    if (heading) {
      ++i;
      add("heading", from, heading);
      continue;
    }
    if (isRule(line)) {
      ++i;
      add("rule", from, {});
      continue;
    }
    if (depth < deepest && isQuote(line)) {
      while (i < lines.length && isQuote(lines[i])) ++i;
      add("quote", from, { lines: lines.slice(from, i).map((quoted) => quoted.replace(/^\s{0,3}> ?/, "")) });
      continue;
    }
    if (depth < deepest && listMarker.test(line)) {
      i = listEnd(lines, i);
      add("list", from, parseList(lines.slice(from, i)));
      continue;
    }
    if (isTable(lines, i)) {
      const alignments = alignmentsOf(lines[i + 1]);
      for (i += 2; i < lines.length && lines[i].includes("|") && !isBlank(lines[i]); ) ++i;
      const rows = lines.slice(from + 2, i).map(cellsOf);
      add("table", from, { head: cellsOf(line), alignments, rows });
      continue;
    }
    do ++i;
    while (i < lines.length && !startsBlock(lines, i));
    add("paragraph", from, { text: lines.slice(from, i).map((part) => part.trim()).join("\n") });
  }
  return blocks;
}

// A list goes on over indented lines, its own kind of marker, and blank lines between such.
function listEnd(lines, start) {
  const indent = listMarker.exec(lines[start])[1].length;
  const ordered = /\d/.test(listMarker.exec(lines[start])[2]);
  let end = start + 1;
  for (let i = start + 1; i < lines.length; ++i) {
    if (isBlank(lines[i])) continue;
    const marker = isRule(lines[i]) ? null : listMarker.exec(lines[i]);
    const own = lines[i].length - lines[i].trimStart().length;
    const goesOn = own > indent || (marker && /\d/.test(marker[2]) === ordered) ||
      (i === end && !startsBlock(lines, i));
    if (!goesOn) break;
    end = i + 1;
  }
  return end;
}

function parseList(lines) {
  const first = listMarker.exec(lines[0]);
  const items = [];
  let width = 0;
  for (const line of lines) {
    const marker = listMarker.exec(line);
    if (marker && marker[1].length <= first[1].length + 1) {
      width = marker[0].length;
      items.push([line.slice(width)]);
    } else {
      const own = line.length - line.trimStart().length;
      items.at(-1).push(line.slice(Math.min(own, width)));
    }
  }
  const start = parseInt(first[2], 10);
  return { ordered: /\d/.test(first[2]), start: Number.isNaN(start) ? 1 : start, items };
}

function renderBlock(block, depth) {
  switch (block.kind) {
    case "code":
      return el("figure", { class: "code-block" },
        el("figcaption", {}, el("span", {}, block.language), copyButton(() => block.text)),
        el("pre", { tabindex: "0" }, el("code", {}, block.text)));
    case "heading":
      return withInline(el(`h${Math.min(block.level + 2, 6)}`), block.text);
    case "rule":
      return el("hr");
    case "quote":
      return withBlocks(el("blockquote"), block.lines, depth);
    case "list": {
      const list = el(block.ordered ? "ol" : "ul", block.ordered && block.start !== 1 ? { start: block.start } : {});
      for (const item of block.items) list.append(renderItem(item, depth));
      return list;
    }
    case "table":
      return renderTable(block);
    default:
      return withInline(el("p"), block.text);
  }
}

function renderItem(lines, depth) {
  const blocks = parseBlocks(lines, depth + 1);
  const item = el("li");
  // An item of one paragraph, or a paragraph and lists, is set tight.
  const tight = blocks.filter((block) => block.kind === "paragraph").length <= 1;
  for (const block of blocks) {
    if (tight && block.kind === "paragraph") withInline(item, block.text);
    else item.append(renderBlock(block, depth + 1));
  }
  return item;
}

function renderTable({ head, alignments, rows }) {
  const cell = (tag, text, column) => withInline(el(tag, { class: `align-${alignments[column] ?? "left"}` }), text);
  const body = rows.map((row) => el("tr", {}, ...head.map((_, column) => cell("td", row[column] ?? "", column))));
  return el("div", { class: "table-scroll", tabindex: "0" },
    el("table", {}, el("thead", {}, el("tr", {}, ...head.map((text, column) => cell("th", text, column)))),
      el("tbody", {}, ...body)));
}

function withBlocks(parent, lines, depth) {
  for (const block of parseBlocks(lines, depth + 1)) parent.append(renderBlock(block, depth + 1));
  return parent;
}

// --- text

function withInline(parent, text) {
  appendInline(parent, text, 0, true);
  return parent;
}

const emphases = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const isWord = (character) => character !== undefined && /[\p{L}\p{N}_]/u.test(character);
const isSpace = (character) => character === undefined || /\s/.test(character);

function appendInline(parent, text, depth, links) {
  const absent = new Set(); // closers that do not come again
  let link = { at: -1, open: -1 }; // the next "](" and the last "[" before it
  let plain = "";
  const flush = () => {
    if (plain !== "") parent.append(plain);
    plain = "";
  };
  const append = (node) => {
    flush();
    parent.append(node);
  };
  for (let i = 0; i < text.length; ) {
    const c = text[i];
    if (c === "\n") {
      append(el("br"));
      ++i;
    } else if (c === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? "")) {
      plain += text[i + 1];
      i += 2;
    } else if (c === "`") {
      const run = /`+/y;
      run.lastIndex = i;
      const ticks = run.exec(text)[0];
      const end = absent.has(ticks) ? -1 : closingTicks(text, ticks, i + ticks.length);
      if (end < 0) {
        absent.add(ticks);
        plain += ticks;
        i += ticks.length;
      } else {
        append(el("code", {}, trimOne(text.slice(i + ticks.length, end))));
        i = end + ticks.length;
      }
    } else if (c === "[" && links) {
      if (link.at < i) {
        const at = link.at === Infinity ? -1 : text.indexOf("](", i);
        link = at < 0 ? { at: Infinity, open: -1 } : { at, open: text.lastIndexOf("[", at) };
      }
      const target = link.open === i ? targetOf(text, link.at + 2) : null;
      if (target) {
        if (plain.endsWith("!")) plain = plain.slice(0, -1); // a picture becomes a link
        append(linkNode(target.href, text.slice(i + 1, link.at), depth));
        i = target.end;
      } else {
        plain += c;
        ++i;
      }
    } else if (c === "<") {
      const tag = /<br\s?\/?>|<(https?:\/\/[^\s<>]{1,2000})>/y;
      tag.lastIndex = i;
      const found = tag.exec(text);
      if (found) append(found[1] ? linkNode(found[1], found[1], deepest) : el("br"));
      else plain += c;
      i += found ? found[0].length : 1;
    } else if (c === "h" && links && !isWord(text[i - 1]) && /^https?:\/\//.test(text.slice(i, i + 8))) {
      const url = /^[^\s<>"`]+/.exec(text.slice(i, i + 2000))[0].replace(/[.,;:!?'*_~]{1,9}$/, "");
      const href = url.endsWith(")") && !url.includes("(") ? url.slice(0, -1) : url;
      append(linkNode(href, href, deepest));
      i += href.length;
    } else {
      const found = "*_~".includes(c) && depth < deepest ? emphasisAt(text, i, absent) : null;
      if (found) {
        const node = el(found.tag);
        appendInline(node, text.slice(i + found.mark.length, found.end), depth + 1, links);
        append(node);
        i = found.end + found.mark.length;
      } else {
        plain += c;
        ++i;
      }
    }
  }
  flush();
}

function closingTicks(text, ticks, from) {
  for (let at = text.indexOf(ticks, from); at >= 0; ) {
    let end = at + ticks.length;
    if (text[end] !== "`") return at;
    while (text[end] === "`") ++end; // a longer run is another one
    at = text.indexOf(ticks, end);
  }
  return -1;
}

const trimOne = (code) => (/^ .*[^ ].* $/s.test(code.slice(0, 5000)) ? code.slice(1, -1) : code);

// The emphasis that opens at i and closes later. Whether a mark can close does not depend on where it opened, so one
// that was not found once is not looked for again.
function emphasisAt(text, i, absent) {
  for (const [mark, tag] of emphases) {
    if (!text.startsWith(mark, i)) continue;
    const underscore = mark[0] === "_";
    if (isSpace(text[i + mark.length]) || (underscore && isWord(text[i - 1]))) return null;
    if (mark.length === 1 && text[i + 1] === mark) return null;
    if (absent.has(mark)) continue;
    for (let at = text.indexOf(mark, i + mark.length + 1); at >= 0; at = text.indexOf(mark, at + mark.length)) {
      if (isSpace(text[at - 1]) || (underscore && isWord(text[at + mark.length]))) continue;
      if (mark.length === 1 && (text[at + 1] === mark || text[at - 1] === mark)) {
        if (text[at + 1] === mark) ++at;
        continue;
      }
      return { mark, tag, end: at };
    }
    absent.add(mark);
  }
  return null;
}

// What stands in the round brackets of a link: the address and perhaps a title.
function targetOf(text, from) {
  let open = 0;
  for (let i = from; i < Math.min(text.length, from + 2000); ++i) {
    if (text[i] === "\n") return null;
    if (text[i] === "(") ++open;
    if (text[i] === ")" && open-- === 0) {
      const href = text.slice(from, i).trim().split(/\s+["'(]/)[0];
      return { href: href.replace(/^<|>$/g, ""), end: i + 1 };
    }
  }
  return null;
}

function linkNode(href, label, depth) {
  let url = null;
  try {
    url = new URL(href);
  } catch {
    // not an address: its text remains
  }
  const safe = url && ["http:", "https:", "mailto:"].includes(url.protocol);
  const node = safe ? el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }) : el("span");
  if (depth >= deepest) node.append(label);
  else appendInline(node, label, depth + 1, false);
  return node;
}
