// Composition of an OSCAR rotation from eigenvectors, Hadamard matrix and bit reversal, the way back, and the numerical
// checks of what came out (method.md 2.4 and 2.7).
#pragma once

#include <Eigen/Core>
#include <string>

#include "oscar/calibrate.h"
#include "oscar/result.h"

namespace oscar::calibrate {

using RowMatrixXf = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// H_d in double, Sylvester order. Precondition: d is a power of two.
Eigen::MatrixXd HadamardMatrix(Eigen::Index d);

// R from U [d, d]: U, U H, U H P, H P or H.
Eigen::MatrixXd ComposeRotation(const Eigen::MatrixXd& vectors, Composition composition);
// U from R: R, R H^T or R P^T H^T. Precondition: the composition holds U.
Eigen::MatrixXd RecoverVectors(const Eigen::MatrixXd& rotation, Composition composition);
inline bool HoldsVectors(Composition composition) {
  return composition != Composition::kHPbr && composition != Composition::kHadamard;
}
// Whether diag(R^T C R) is flat: the Hadamard mixes the eigenvectors of C.
inline bool FlattensDiagonal(Composition composition) {
  return composition == Composition::kRH || composition == Composition::kRHPbr;
}

double OrthogonalityError(const Eigen::MatrixXd& matrix);                                             // max |A^T A - I|
Eigen::VectorXd RotatedDiagonal(const Eigen::MatrixXd& rotation, const Eigen::MatrixXd& covariance);  // diag(R^T C R)

// One fitted basis.
struct FittedRotation {
  RowMatrixXf rotation;            // as stored
  Eigen::VectorXd eigenvalues;     // ascending
  double orthogonality_error = 0;  // of the float32 matrix
};

// Eigen-decomposition, composition, cast, and all checks of method.md 2.7 with their limits; an error says which
// failed.
Result<FittedRotation> FitRotation(const Eigen::MatrixXd& covariance, Composition composition);

double Condition(const Eigen::VectorXd& eigenvalues);  // lambda_max / lambda_0; infinite for 0 below; 1 for all 0
double Top8Share(const Eigen::VectorXd& eigenvalues);  // share of the trace in the 8 largest; 0 for all 0

}  // namespace oscar::calibrate
