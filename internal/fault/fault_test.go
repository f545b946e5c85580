package fault

import (
	"errors"
	"fmt"
	"testing"
)

// TestTextOnce: an operation that an error came back from, and that wraps it again,
// stands in the text once; kind and reason are those of the outer error.
func TestTextOnce(t *testing.T) {
	inner := New(Denied, "permission_denied", "create token", errors.New("denied"))
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

// TestMark: the mark is found in a chain, and kind, reason and text are those of the
// error that has it.
func TestMark(t *testing.T) {
	sentinel, cause := errors.New("sentinel"), errors.New("cause")
	err := New(Busy, "b", "open", Mark(cause, sentinel))
	if !errors.Is(err, sentinel) || !errors.Is(err, cause) || err.Error() != "open: cause" {
		t.Errorf("%v", err)
	}
	if err := Mark(err, sentinel); KindOf(err) != Busy || ReasonOf(err) != "b" || err.Error() != "open: cause" {
		t.Errorf("%v", err)
	}
	if errors.Is(Mark(cause, sentinel), errors.New("sentinel")) {
		t.Error("another error of the same text is the sentinel")
	}
}

// TestCode: a code is found in each Error of its reason, however deep, also in one that came from
// another process, and in no other.
func TestCode(t *testing.T) {
	inner := New(Busy, "locked", "open", errors.New("held"))
	for name, err := range map[string]error{
		"itself": inner, "below text": fmt.Errorf("read: %w", inner), "below another": New(Refused, "internal", "run", inner),
		"joined": errors.Join(errors.New("other"), inner), "from another process": MessageOf(inner).Err(),
	} {
		if !errors.Is(err, ErrLocked) || errors.Is(err, ErrExists) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if errors.Is(errors.New("locked"), ErrLocked) || errors.Is(nil, ErrLocked) || errors.Is(New(Busy, "", "open", nil), Code("locked")) {
		t.Error("found where none is")
	}
}
