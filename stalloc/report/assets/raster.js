// Rectangles into pixels, exactly: a pixel gets of each rectangle's colour the share of its area
// that the rectangle covers. Rectangles of one layout never overlap, so the shares of a pixel add up
// to at most one, nothing has to be sorted, and the work is the area of the drawing plus a few
// operations for each rectangle: 300,000 take some milliseconds, however many share a pixel.

// A pixel that anything at all touches is at least this opaque, so that what is far smaller than a
// pixel is seen.
const FAINTEST = 0.22;

class Raster {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.width = 0;
    this.height = 0;
  }

  clear(width, height) {
    if (width !== this.width || height !== this.height) {
      this.width = this.canvas.width = width;
      this.height = this.canvas.height = height;
      this.sums = new Float32Array(4 * width * height);
      this.image = new ImageData(width, height);
    } else {
      this.sums.fill(0);
    }
  }

  // Adds `colour`, weighted by what [x0, x1) x [y0, y1) covers of each pixel.
  add(x0, y0, x1, y1, [red, green, blue, alpha]) {
    x0 = Math.max(x0, 0);
    y0 = Math.max(y0, 0);
    x1 = Math.min(x1, this.width);
    y1 = Math.min(y1, this.height);
    if (!(x0 < x1 && y0 < y1)) return;
    const left = Math.floor(x0);
    const right = Math.ceil(x1);
    const bottom = Math.ceil(y1);
    const sums = this.sums;
    for (let y = Math.floor(y0); y < bottom; ++y) {
      const rows = Math.min(y + 1, y1) - Math.max(y, y0);
      let k = 4 * (y * this.width + left);
      for (let x = left; x < right; ++x, k += 4) {
        const share = rows * (Math.min(x + 1, x1) - Math.max(x, x0));
        sums[k] += share * red;
        sums[k + 1] += share * green;
        sums[k + 2] += share * blue;
        sums[k + 3] += share * alpha;
      }
    }
  }

  // Draws what was added, its upper left corner at (x, y) in device pixels.
  paint(context, x, y) {
    const { sums } = this;
    const pixels = this.image.data;
    for (let k = 0; k < sums.length; k += 4) {
      const alpha = sums[k + 3];
      if (alpha <= 0) {
        pixels[k + 3] = 0;
        continue;
      }
      pixels[k] = sums[k] / alpha;
      pixels[k + 1] = sums[k + 1] / alpha;
      pixels[k + 2] = sums[k + 2] / alpha;
      pixels[k + 3] = 255 * Math.min(1, Math.max(alpha, FAINTEST + (1 - FAINTEST) * alpha));
    }
    this.canvas.getContext("2d").putImageData(this.image, 0, 0);
    context.drawImage(this.canvas, x, y);
  }
}
