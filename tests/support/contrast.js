// Returns the texts of a page whose contrast with their ground is below 4.5.
() => {
  const channel = (c) => {
    c /= 255;
    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  };
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const dot = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (text) => {
    // any colour that a browser knows, oklab too
    dot.clearRect(0, 0, 1, 1);
    dot.fillStyle = text;
    dot.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = dot.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor,
        parts = rgb(colour);
      if (parts[3] > 0.99) return parts;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT),
    bad = [];
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement,
      words = walker.currentNode.textContent.trim();
    if (
      !words ||
      ["SCRIPT", "STYLE", "NOSCRIPT", "TITLE"].includes(node.tagName) ||
      !node.getClientRects().length ||
      node.disabled
    )
      continue;
    const drawn = node.namespaceURI.endsWith("svg"),
      style = getComputedStyle(node);
    const halo = drawn && style.paintOrder.startsWith("stroke") && style.stroke.startsWith("rgb");
    if (drawn && style.fill.startsWith("rgb") === false) continue;
    const box =
      drawn && !halo && node.previousElementSibling && node.previousElementSibling.tagName === "rect"
        ? getComputedStyle(node.previousElementSibling).fill
        : "";
    const fore = rgb(drawn ? style.fill : style.color),
      back = halo ? rgb(style.stroke) : box.startsWith("rgb(") ? rgb(box) : ground(node);
    const [a, b] = [light(fore), light(back)].sort((p, q) => q - p),
      ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push([words.slice(0, 40), ratio.toFixed(2)]);
  }
  return bad;
}
