package capsule

import (
	"testing"

	"palyra/internal/canon/canontest"
)

func TestBytes(t *testing.T) { canontest.Bytes[Capsule](t, "testdata/capsule") }
