package capsule

import (
	"testing"

	"palyra/internal/canon"
	"palyra/internal/canon/canontest"
)

func TestPrint(t *testing.T) { canontest.Printer(t, func() canon.Printer { return new(Capsule) }) }
