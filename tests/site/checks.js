// What the tests ask of an open page; evaluates to an object of functions.
({
  // Elements that stick out of the window although no box that scrolls holds them.
  stickingOut() {
    const holds = (element) => {
      for (let box = element; box && box !== document.body; box = box.parentElement) {
        if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(box).overflowX)) return true;
      }
      return false;
    };
    return Array.from(document.querySelectorAll("article *"))
      .filter((e) => e.getBoundingClientRect().width && e.getBoundingClientRect().right > innerWidth + 1 && !holds(e))
      .slice(0, 5)
      .map((e) => `${e.tagName}.${e.className}: ${Math.round(e.getBoundingClientRect().right)}`);
  },

  // Small words whose contrast with what is behind them is under 4.5 (WCAG 2).
  lowContrast() {
    const parse = (text) => {
      const numbers = text.match(/[\d.]+/g).map(Number);
      return numbers.length === 3 ? [...numbers, 1] : numbers;
    };
    const luminance = (color) => {
      const [r, g, b] = color.slice(0, 3).map((x) => (x / 255 <= 0.04045 ? x / 3294.6 : ((x / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
      for (let box = element; box; box = box.parentElement) {
        const color = parse(getComputedStyle(box).backgroundColor);
        if (color[3] > 0.5) return color;
      }
      return [255, 255, 255, 1];
    };
    const low = new Set();
    const words = "article .lk-badge, article .lk-pill, article .lk-small, article figcaption, article .lk-tools label";
    for (const element of document.querySelectorAll(words)) {
      const a = luminance(parse(getComputedStyle(element).color)), b = luminance(behind(element));
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) low.add(`${element.className}: ${ratio.toFixed(2)}`);
    }
    return Array.from(low);
  },

  // Pictures and figures without a text for those who cannot see them.
  unlabelled() {
    return Array.from(document.querySelectorAll("article img, article figure svg[role=img], article .lk-plotly"))
      .filter((e) => !(e.getAttribute("alt") || e.getAttribute("aria-label") || "").trim())
      .map((e) => e.outerHTML.slice(0, 120));
  },

  // Texts inside a drawn figure that its frame cuts off, or that lie on each other.
  badFigureText() {
    const bad = [];
    for (const figure of document.querySelectorAll(".lk-plotly")) {
      const frame = figure.getBoundingClientRect();
      const texts = Array.from(figure.querySelectorAll(".xtick text, .ytick text, .legendtext, .annotation-text, .g-xtitle text, .g-ytitle text"))
        .map((e) => [e.textContent, e.getBoundingClientRect(), /rotate\((?!0[,)])/.test(e.getAttribute("transform") || "")])
        .filter(([, r]) => r.width > 0);
      for (const [text, r] of texts) {
        if (r.left < frame.left - 1 || r.right > frame.right + 1 || r.top < frame.top - 1 || r.bottom > frame.bottom + 1) {
          bad.push(`cut off: ${text}`);
        }
      }
      const level = texts.filter(([, , turned]) => !turned); // boxes of turned texts overlap although the texts do not
      level.forEach(([a, r], i) => level.slice(i + 1).forEach(([b, s]) => {
        const wide = Math.min(r.right, s.right) - Math.max(r.left, s.left);
        const high = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
        if (wide > 2 && high > 3) bad.push(`on each other: ${a} / ${b}`);
      }));
    }
    return bad.slice(0, 5);
  },

  undrawn: () => document.querySelectorAll(".lk-plotly:not([data-ready]), .lk-plotly:not(:has(.main-svg))").length,
  unsetMath: () => Array.from(document.querySelectorAll("article .math")).filter((e) => !e.querySelector("mjx-container svg")).length,
  unready() {
    return this.undrawn() + this.unsetMath();
  },

  problems() {
    const sideways = document.documentElement.scrollWidth > innerWidth ? ["the page scrolls sideways"] : [];
    return [...sideways, ...this.stickingOut(), ...this.lowContrast(), ...this.unlabelled(), ...this.badFigureText()];
  },
})
