// SPDX-License-Identifier: MIT

// A device.json that --calibrate writes on this machine can be read.

#include "runtime/Predict/CalibrationRun.h"

#include <gtest/gtest.h>

#include "runtime/Predict/Calibrate.h"
#include "tests/runtime/TemporaryFolder.h"

using namespace qlora;

/// Reading would fail if a rate were missing or not positive.
TEST(Calibrate, MeasuresEveryRate) {
  const TemporaryFolder folder;
  const std::string path = folder.path("device.json");
  const StatusOr<std::string> text = runCalibration({path, 1, ""}, {}, {});
  ASSERT_TRUE(text.isOk()) << text.status().message();
  const StatusOr<DeviceProfile> profile = readDeviceProfile(path);
  ASSERT_TRUE(profile.isOk()) << profile.status().message();
  EXPECT_EQ(profile->cpu, profileOfThisMachine().cpu);
  EXPECT_TRUE(profile->kernels.has_value());
  EXPECT_FALSE(profile->links.areMeasured());
}
