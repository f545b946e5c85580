package isolate

import (
	"testing"

	"palyra/internal/canon/canontest"
)

func TestBytes(t *testing.T) { canontest.Bytes[Spec](t, "testdata/spec") }
