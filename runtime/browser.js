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
  const pixels = context.getImageData(0, 0, width, height).data, area = width * height;
  const input = Float32Array.from({ length: 3 * area }, (_, i) => {
    const channel = Math.floor(i / area);
    return (pixels[4 * (i % area) + channel] - mean[channel]) / std[channel];
  });
  const outputs = await session.run({ [session.inputNames[0]]: new ort.Tensor('float32', input, [1, 3, height, width]) });
  const { data: logits, dims } = outputs[session.outputNames[0]];
  const [classes, size] = [dims[1], dims[2] * dims[3]], labels = new Uint16Array(size);
  for (let pixel = 0; pixel < size; pixel++)
    for (let index = 1; index < classes; index++)
      if (logits[index * size + pixel] > logits[labels[pixel] * size + pixel]) labels[pixel] = index;
  return { labels, width: dims[3], height: dims[2] };
}
