package fault

import (
	"errors"
	"testing"
)

// TestMessage: what passes is all but the causes.
func TestMessage(t *testing.T) {
	if err := MessageOf(nil).Err(); err != nil {
		t.Error(err)
	}
	for _, want := range []error{New(Unavailable, "budget", "open", nil).WithHint("wait"), New(Usage, "invalid_input", "read", errors.New("a word"))} {
		got := MessageOf(want).Err()
		if got.Error() != want.Error() || ReasonOf(got) != ReasonOf(want) || KindOf(got) != KindOf(want) || HintOf(got) != HintOf(want) {
			t.Errorf("%v became %v", want, got)
		}
	}
	if got := MessageOf(errors.New("another")).Err(); ReasonOf(got) != "internal" || got.Error() == "" {
		t.Errorf("an error of no kind became %v", got)
	}
}
