package evidence

import (
	"testing"

	"palyra/internal/canon/canontest"
)

func TestBytes(t *testing.T) { canontest.Bytes[Evidence](t, "testdata/evidence") }
