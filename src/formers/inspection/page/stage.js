// The stage: one canvas that shows the visible part of a picture, its scroll bars, pointer, keyboard and tooltip.

import { makeElement } from "./dom.js";
import { CanvasSurface, SvgSurface } from "./surfaces.js";

const LARGEST_FILE = 8000; // pixels a side of an exported picture
const BORDERS = 2; // above and below the frame
const SCROLL_BAR = 16;

export class Stage {
  constructor(parent, { label, announce, move, share = 0.74 }) {
    this.announce = announce;
    this.move = move;
    this.share = share;
    this.hover = null;
    this.picture = null;
    this.canvas = makeElement("canvas", { "aria-hidden": "true" });
    this.sizer = makeElement("div", { class: "fv-sizer" }, this.canvas);
    this.tip = makeElement("div", { class: "fv-tip", hidden: true, "aria-hidden": "true" });
    this.frame = makeElement("div", {
      class: "fv-stage", tabindex: "0", role: "application", "aria-label": label,
      onscroll: () => this.draw(),
      onpointermove: (event) => this.point(event),
      onpointerleave: () => this.leave(),
      onclick: (event) => this.press(event),
      onkeydown: (event) => this.type(event),
    }, this.sizer);
    parent.append(this.frame, this.tip);
  }

  // The width that a picture may take without scrolling sideways.
  get width() {
    return Math.max(280, this.frame.clientWidth);
  }

  show(picture, label) {
    this.picture = picture;
    this.hover = null;
    this.tip.hidden = true;
    if (label) this.frame.setAttribute("aria-label", label);
    const most = Math.max(320, Math.round(window.innerHeight * this.share));
    const height = Math.min(picture.height, most);
    this.sizer.style.width = `${picture.width}px`;
    this.sizer.style.height = `${picture.height}px`;
    this.frame.style.height = `${height + BORDERS + (picture.width > this.frame.clientWidth ? SCROLL_BAR : 0)}px`;
    this.resize();
    this.revealSelection();
    this.draw();
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.min(this.frame.clientWidth, Math.max(this.picture.width, this.frame.clientWidth));
    const height = this.frame.clientHeight;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.size = { width, height, ratio };
  }

  // Scroll so that the selected row or column is in sight.
  revealSelection() {
    const place = this.picture.selectedPlace;
    if (!place) return;
    const { scrollTop, scrollLeft, clientHeight, clientWidth } = this.frame;
    if (place.x !== undefined && (place.x < scrollLeft + 90 || place.x + place.width > scrollLeft + clientWidth)) {
      this.frame.scrollLeft = place.x - clientWidth / 2;
    }
    if (place.y === undefined) return;
    if (place.y < scrollTop + place.margin) this.frame.scrollTop = place.y - place.margin;
    else if (place.y + place.height > scrollTop + clientHeight) this.frame.scrollTop = place.y + place.height - clientHeight;
  }

  draw() {
    if (!this.picture || !this.size) return;
    const context = this.canvas.getContext("2d");
    const view = { x: this.frame.scrollLeft, y: this.frame.scrollTop, width: this.size.width, height: this.size.height };
    context.setTransform(this.size.ratio, 0, 0, this.size.ratio, 0, 0);
    context.clearRect(0, 0, view.width, view.height);
    context.translate(-view.x, -view.y);
    this.picture.draw(new CanvasSurface(context), view, this.hover);
  }

  locate(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left + this.frame.scrollLeft, event.clientY - box.top + this.frame.scrollTop];
  }

  point(event) {
    const hit = this.picture?.pick?.(...this.locate(event)) ?? null;
    if (JSON.stringify(hit) !== JSON.stringify(this.hover)) {
      this.hover = hit;
      this.draw();
    }
    this.frame.style.cursor = hit && this.picture.choose ? "pointer" : "default";
    const words = hit && this.picture.describe?.(hit);
    this.tip.hidden = !words;
    if (!words) return;
    this.tip.textContent = words;
    const room = window.innerWidth - this.tip.offsetWidth - 12;
    this.tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, room))}px`;
    this.tip.style.top = `${event.clientY + 16 + this.tip.offsetHeight > window.innerHeight ? event.clientY - this.tip.offsetHeight - 8 : event.clientY + 16}px`;
  }

  leave() {
    this.hover = null;
    this.tip.hidden = true;
    this.draw();
  }

  press(event) {
    const hit = this.picture?.pick?.(...this.locate(event));
    if (!hit) return;
    if (this.picture.describe) this.announce(this.picture.describe(hit));
    this.picture.choose?.(hit);
  }

  type(event) {
    if (this.move?.(event)) event.preventDefault();
  }

  // The whole picture as SVG, also what is scrolled out of sight.
  exportSvg(palette) {
    const view = this.getWholeView();
    const surface = new SvgSurface(view.width, view.height, palette.paper);
    this.picture.draw(surface, view, null);
    return surface.toString();
  }

  async exportPng(palette) {
    const view = this.getWholeView();
    const ratio = Math.max(1, Math.min(2, LARGEST_FILE / Math.max(view.width, view.height)));
    const canvas = makeElement("canvas");
    canvas.width = view.width * ratio;
    canvas.height = view.height * ratio;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.fillStyle = palette.paper;
    context.fillRect(0, 0, view.width, view.height);
    this.picture.draw(new CanvasSurface(context), view, null);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }

  getWholeView() {
    return { x: 0, y: 0, width: Math.min(LARGEST_FILE, Math.max(this.picture.width, 200)), height: Math.min(LARGEST_FILE, this.picture.height) };
  }
}
