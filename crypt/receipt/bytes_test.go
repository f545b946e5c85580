package receipt

import (
	"testing"

	"palyra/internal/canon/canontest"
)

func TestBytes(t *testing.T) { canontest.Bytes[Statement](t, "testdata/statement") }
