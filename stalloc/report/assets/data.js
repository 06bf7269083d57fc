// The page's data: a description, and columns packed by pack.py, read back as Float64Array.
// Every number in them is whole; above 2^53 it is rounded, which no pixel can show.

const TYPES = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array };

async function readColumns(manifest) {
  const bytes = await inflate(document.getElementById("data").textContent);
  const columns = {};
  for (const [name, entry] of Object.entries(manifest)) {
    const stored = new TYPES[entry.type](bytes, entry.offset, entry.length);
    const column = new Float64Array(entry.length);
    let sum = 0;
    for (let i = 0; i < column.length; ++i) {
      const value = entry.base + entry.scale * stored[i];
      column[i] = entry.steps ? (sum += value) : value;
    }
    columns[name] = column;
  }
  return columns;
}

async function inflate(text) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser is too old for the report: it needs Chrome 80, Firefox 113, Safari 16.4 or newer.");
  }
  const binary = atob(text);
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < packed.length; ++i) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}
