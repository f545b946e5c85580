package fault

import "errors"

// Message is an Error without its causes, as it passes from one of our processes to another. Only
// the kind, the reason and texts without secrets do.
type Message struct {
	Kind   Kind   `json:"kind"`
	Reason string `json:"reason"`
	Op     string `json:"op"`
	Text   string `json:"text"`
	Hint   string `json:"hint,omitempty"`
}

// MessageOf returns err as it passes, nil for nil.
func MessageOf(err error) *Message {
	if err == nil {
		return nil
	}
	m := &Message{Kind: KindOf(err), Reason: ReasonOf(err), Hint: HintOf(err), Text: err.Error()}
	if e, ok := errors.AsType[*Error](err); ok {
		m.Op = e.Op
		m.Text = ""
		if e.Err != nil {
			m.Text = e.Err.Error()
		}
	}
	if m.Reason == "" {
		m.Reason = "internal"
	}
	return m
}

// Err is the inverse of MessageOf.
func (m *Message) Err() error {
	if m == nil {
		return nil
	}
	var cause error
	if m.Text != "" {
		cause = errors.New(m.Text)
	}
	return New(m.Kind, m.Reason, m.Op, cause).WithHint(m.Hint)
}
