package fault

import (
	"errors"
	"testing"
)

// TestTextOnce: an operation that an error came back from, and that wraps it again,
// stands in the text once; kind and reason are those of the outer error.
func TestTextOnce(t *testing.T) {
	inner := New(Denied, "not_own_principal", "create token", errors.New("denied"))
	for _, c := range []struct {
		err  error
		want string
	}{
		{New(Denied, "a", "create token", inner), "create token: denied"},
		{New(Denied, "a", "create token x", inner), "create token x: create token: denied"},
		{New(Busy, "b", "open", nil), "open: b"},
		{New(Busy, "b", "open", errors.New("opening: no")), "open: opening: no"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if err := New(Busy, "outer", "create token", inner); KindOf(err) != Busy || ReasonOf(err) != "outer" || !errors.Is(err, inner) {
		t.Errorf("%v", err)
	}
}
