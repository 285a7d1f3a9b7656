// Draws the figures of a page when they come near the screen, with this site's own plotly.js, in the page's colours.
(() => {
  "use strict";
  const GREY = "#767676"; // the template's neutral text colour, replaced by the theme's
  const root = new URL(document.documentElement.dataset.content_root || "./", document.baseURI);
  const boxes = Array.from(document.querySelectorAll(".lk-plotly"));
  const figures = new Map(boxes.map((box) => [box, JSON.parse(box.querySelector("script").textContent)]));
  const drawn = new Map(); // box -> width it was drawn for
  let library;

  function loadLibrary() {
    library ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL("_static/vendor/plotly.min.js", root).href;
      script.onload = () => resolve(window.Plotly);
      script.onerror = () => reject(new Error("plotly.min.js did not load"));
      document.head.append(script);
    });
    return library;
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Break a text into lines of at most `length` letters, at spaces.
  function wrap(text, length) {
    const lines = [""];
    for (const word of text.split(" ")) {
      const last = lines.length - 1;
      if (lines[last] && lines[last].length + word.length >= length) lines.push(word);
      else lines[last] += (lines[last] ? " " : "") + word;
    }
    return lines.join("<br>");
  }

  function layoutFor(box, layout) {
    const copy = structuredClone(layout);
    const small = box.clientWidth < 520;
    const ink = colour("--pst-color-text-base"), muted = colour("--pst-color-text-muted");
    copy.paper_bgcolor = copy.plot_bgcolor = "rgba(0,0,0,0)";
    copy.font = { ...copy.font, color: ink, ...(small ? { size: 11 } : {}) };
    copy.hoverlabel = { ...copy.hoverlabel, bgcolor: colour("--pst-color-surface"), font: { color: ink } };
    copy.margin = { ...copy.margin, t: 28, r: small ? 8 : 16, ...(small ? { l: 44 } : {}) };
    for (const note of copy.annotations || []) {
      if ((note.font?.color ?? GREY) === GREY) note.font = { ...note.font, color: muted };
      if (small) note.font = { ...note.font, size: Math.min(note.font?.size ?? 12, 10) };
    }
    copy.autosize = true;
    delete copy.width;
    return copy;
  }

  // Axis titles and labels of lines that are longer than their axis, as changes to the layout: known only once the
  // figure is drawn.
  function brokenTitles(box) {
    const changes = {};
    for (const [name, axis] of Object.entries(box._fullLayout)) {
      if (!/^[xy]axis\d*$/.test(name) || !axis.title?.text || axis.title.text.includes("<br>")) continue;
      const size = box._fullLayout._size, span = axis.domain[1] - axis.domain[0];
      const room = (name[0] === "x" ? size.w : size.h) * span;
      const broken = wrap(axis.title.text, room / (0.58 * axis.title.font.size));
      if (broken !== axis.title.text) changes[`${name}.title.text`] = broken;
    }
    box._fullLayout.annotations.forEach((note, i) => {
      if (!/domain|paper/.test(note.xref) || note.text.includes("<br>")) return;
      const broken = wrap(note.text, box._fullLayout._size.w / (0.55 * note.font.size));
      if (broken !== note.text) changes[`annotations[${i}].text`] = broken;
    });
    return changes;
  }

  async function draw(box) {
    const Plotly = await loadLibrary();
    const { data, layout } = figures.get(box);
    delete box.dataset.ready;
    box.querySelector("script")?.remove();
    box.querySelector("noscript")?.remove();
    const traces = structuredClone(data);
    for (const trace of traces) if (trace.name) trace.name = wrap(trace.name, (box.clientWidth - 70) / 6.5);
    await Plotly.react(box, traces, layoutFor(box, layout), {
      displaylogo: false, displayModeBar: window.matchMedia("(hover: hover)").matches ? "hover" : false,
    });
    const changes = brokenTitles(box);
    if (Object.keys(changes).length) await Plotly.relayout(box, changes);
    drawn.set(box, box.clientWidth);
    box.dataset.ready = "";
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "400px" });
  boxes.forEach((box) => near.observe(box));
  const sized = new ResizeObserver((entries) => {
    for (const { target } of entries) if (drawn.has(target) && drawn.get(target) !== target.clientWidth) draw(target);
  });
  boxes.forEach((box) => sized.observe(box));
  new MutationObserver(() => drawn.forEach((_, box) => draw(box)))
    .observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  addEventListener("beforeprint", () => boxes.forEach((box) => draw(box)));
})();
