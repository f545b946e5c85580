package tools

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Read reads the call that a tool's program was started for: args are the tool's name and the
// brief, stdin is the input, with a payload of at most most bytes behind it. The input is decoded,
// and held to the brief that policy and approver saw.
func Read(args []string, stdin io.Reader, most int64) (t Tool, in any, payload []byte, err error) {
	if len(args) == 0 {
		return t, nil, nil, fault.New(fault.Usage, "invalid_input", "start tool", errors.New("no tool named"))
	}
	data, err := io.ReadAll(io.LimitReader(stdin, toolproto.MaxInput+most+1))
	if err != nil {
		return t, nil, nil, fault.New(fault.Internal, "internal", "read input", err)
	}
	t, ok := Find(args[0])
	if !ok {
		return t, nil, nil, fault.New(fault.Usage, "not_found", fmt.Sprintf("start tool %q", args[0]), nil)
	}
	line, payload, _ := bytes.Cut(data, []byte("\n"))
	if !t.Payload && len(payload) > 0 {
		line = data // and let the decoder say what follows
	}
	in = t.Input()
	if err := toolproto.DecodeInner(line, in); err != nil {
		return t, nil, nil, err
	}
	brief, err := t.Brief(in)
	if err != nil {
		return t, nil, nil, err
	}
	if !slices.Equal(args[1:], brief) {
		return t, nil, nil, fault.New(fault.Usage, "invalid_input", "check arguments", errors.New("they do not belong to this input"))
	}
	return t, in, payload, nil
}
