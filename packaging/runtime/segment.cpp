// A segmentor of tools/export.py in C++, with onnxruntime and OpenCV; mean, std, scale and the
// sizes that the file takes stand in pipeline.json.
//     g++ -std=c++17 segment.cpp $(pkg-config --cflags --libs libonnxruntime opencv4) -o segment
//     ./segment exported/end2end.onnx street.jpg labels.png
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <opencv2/opencv.hpp>

int main(int, char** argv) {
  Ort::Env environment;
  Ort::Session session(environment, argv[1], Ort::SessionOptions());
  cv::Mat image = cv::imread(argv[2]);
  double factor = std::min(2048.0 / std::max(image.rows, image.cols), 512.0 / std::min(image.rows, image.cols));
  cv::resize(image, image, cv::Size(int(image.cols * factor + 0.5), int(image.rows * factor + 0.5)));
  image.convertTo(image, CV_32FC3);
  cv::subtract(image, cv::Scalar(103.53, 116.28, 123.675), image);
  cv::divide(image, cv::Scalar(57.375, 57.12, 58.395), image);
  // Zeros at the right and at the bottom, up to a size that the file takes: of --via torch; mmdeploy's take all, 1
  // and 1.
  const int minimum = 64, multiple = 32, rows = image.rows, columns = image.cols;
  const auto padding = [&](int side) {
    return (std::max(side, minimum) + multiple - 1) / multiple * multiple - side;
  };
  cv::copyMakeBorder(image, image, 0, padding(rows), 0, padding(columns), cv::BORDER_CONSTANT);
  cv::Mat input = cv::dnn::blobFromImage(image, 1.0, cv::Size(), cv::Scalar(), true);  // BGR to RGB, (1, 3, H, W)
  Ort::AllocatorWithDefaultOptions allocator;
  auto name_in = session.GetInputNameAllocated(0, allocator), name_out = session.GetOutputNameAllocated(0, allocator);
  const char *names_in[] = {name_in.get()}, *names_out[] = {name_out.get()};
  const int64_t shape[] = {1, 3, image.rows, image.cols};
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  auto tensor = Ort::Value::CreateTensor<float>(memory, input.ptr<float>(), input.total(), shape, 4);
  auto outputs = session.Run(Ort::RunOptions(), names_in, &tensor, 1, names_out, 1);
  const auto size = outputs[0].GetTensorTypeAndShapeInfo().GetShape();
  const float* logits = outputs[0].GetTensorData<float>();
  const int64_t classes = size[1], area = size[2] * size[3];
  cv::Mat labels(int(size[2]), int(size[3]), CV_8U);
  for (int64_t pixel = 0; pixel < area; pixel++)
    for (int64_t index = 1; index < classes; index++)
      if (logits[index * area + pixel] > logits[labels.data[pixel] * area + pixel]) labels.data[pixel] = index;
  const int width = int(std::ceil(double(size[3]) * columns / image.cols));
  const int height = int(std::ceil(double(size[2]) * rows / image.rows));
  cv::imwrite(argv[3], labels(cv::Rect(0, 0, width, height)));
}
