package faulty_test

import "testing"

func testNothing(t *testing.T) { t.Logf("%d", "text") }
