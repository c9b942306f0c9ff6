// SPDX-License-Identifier: MIT

// Low-rank factors from Eigen's SVD and QR.

#include "runtime/Weights/LowRank.h"

#include <Eigen/Dense>

namespace qlora {

using Matrix = Eigen::MatrixXf;
using RowMajor =
    Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

static Matrix toMatrix(const WholeMatrix &w) {
  const Eigen::Map<const RowMajor> stored(w.values.data(),
                                          w.isTransposed ? w.columns : w.rows,
                                          w.isTransposed ? w.rows : w.columns);
  return w.isTransposed ? Matrix(stored.transpose()) : Matrix(stored);
}

static std::vector<float> rowsOf(const Matrix &matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.size()));
  Eigen::Map<RowMajor>(values.data(), matrix.rows(), matrix.cols()) = matrix;
  return values;
}

/// Rounding errors strongly perturb singular vectors of close singular values.
using Exact = Eigen::MatrixXd;
using Svd = Eigen::BDCSVD<Exact>;

static LowRank shareRoots(const Exact &u, const Eigen::VectorXd &values,
                          const Exact &v, int64_t rank, double scale) {
  const Eigen::VectorXd roots = (values.head(rank) / scale).cwiseSqrt();
  return {rowsOf((roots.asDiagonal() * v.leftCols(rank).transpose())
                     .cast<float>()),
          rowsOf((u.leftCols(rank) * roots.asDiagonal()).cast<float>())};
}

LowRank largestFactors(const WholeMatrix &w, int64_t rank, double scale) {
  const Svd svd(toMatrix(w).cast<double>(),
                Eigen::ComputeThinU | Eigen::ComputeThinV);
  return shareRoots(svd.matrixU(), svd.singularValues(), svd.matrixV(), rank,
                    scale);
}

/// Returns an orthonormal basis of the columns of `thin`: Q of its QR.
static Matrix orthonormal(const Matrix &thin) {
  return Eigen::HouseholderQR<Matrix>(thin).householderQ() *
         Matrix::Identity(thin.rows(), thin.cols());
}

LowRank nearLargestFactors(const WholeMatrix &w, int64_t rank, double scale,
                           int64_t iterations, std::span<const float> start) {
  const Matrix matrix = toMatrix(w);
  const Eigen::Map<const RowMajor> first(start.data(), w.columns, rank);
  Matrix q = orthonormal(matrix * first);
  for (int64_t i = 0; i < iterations; ++i)
    q = orthonormal(matrix * orthonormal(matrix.transpose() * q));
  // W^T Q is thin. Its SVD is the SVD of Q^T W with U and V swapped.
  const Svd svd((matrix.transpose() * q).cast<double>(),
                Eigen::ComputeThinU | Eigen::ComputeThinV);
  return shareRoots(q.cast<double>() * svd.matrixV(), svd.singularValues(),
                    svd.matrixU(), rank, scale);
}

LowRank orthogonalFactors(const WholeMatrix &w, int64_t rank) {
  const Matrix matrix = toMatrix(w);
  const Matrix q = orthonormal(matrix.leftCols(rank));
  return {rowsOf(q.transpose() * matrix), rowsOf(q)};
}

} // namespace qlora
