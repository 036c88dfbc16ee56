// A segmentor of tools/export.py in the browser, by its pipeline.json:
//     const model = await load('exported', 'end2end.onnx');
//     const { labels, width, height } = await segment(model, document.querySelector('img'));
import * as ort from './node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs';

export async function load(folder, file) {
  const about = await (await fetch(`${folder}/pipeline.json`)).json();
  return { about, session: await ort.InferenceSession.create(`${folder}/${file}`) };
}

export async function segment({ about, session }, image) {
  const [{ scale }, { mean, std }] = about.preprocessing; // resize, normalize
  const sides = [image.naturalWidth, image.naturalHeight];
  const factor = Math.min(Math.max(...scale) / Math.max(...sides), Math.min(...scale) / Math.min(...sides));
  const [width, height] = sides.map((side) => Math.floor(side * factor + 0.5));
  const context = new OffscreenCanvas(width, height).getContext('2d');
  context.drawImage(image, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height).data;
  // Zeros at the right and at the bottom, up to a size that the model takes.
  const { minimum = 1, multiple = 1 } = about.inputs?.[0] ?? {};
  const [columns, rows] = [width, height].map((side) => Math.ceil(Math.max(side, minimum) / multiple) * multiple);
  const input = new Float32Array(3 * rows * columns);
  for (let channel = 0; channel < 3; channel++)
    for (let pixel = 0; pixel < width * height; pixel++) {
      const place = (channel * rows + Math.floor(pixel / width)) * columns + (pixel % width);
      input[place] = (pixels[4 * pixel + channel] - mean[channel]) / std[channel];
    }
  const outputs = await session.run({ [session.inputNames[0]]: new ort.Tensor('float32', input, [1, 3, rows, columns]) });
  const { data: logits, dims } = outputs[session.outputNames[0]];
  const [, classes, outputRows, outputColumns] = dims, size = outputRows * outputColumns;
  const cut = [Math.ceil((outputColumns * width) / columns), Math.ceil((outputRows * height) / rows)];
  const labels = Uint16Array.from({ length: cut[0] * cut[1] }, (_, i) => {
    const pixel = Math.floor(i / cut[0]) * outputColumns + (i % cut[0]);
    let label = 0;
    for (let index = 1; index < classes; index++)
      if (logits[index * size + pixel] > logits[label * size + pixel]) label = index;
    return label;
  });
  return { labels, width: cut[0], height: cut[1] };
}
