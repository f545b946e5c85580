package cell

import (
	"encoding/binary"
	"testing"

	"palyra/isolate"
	"palyra/isolate/cell/wire"
)

// FuzzReply: an answer with an id can be read or is an error, and has the same id both times.
// palyra-cell is trusted to confine, and no further.
func FuzzReply(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{wire.OpResult})
	f.Add(binary.LittleEndian.AppendUint64([]byte{wire.OpResult}, 7))
	f.Add(wire.AppendResult(binary.LittleEndian.AppendUint64([]byte{wire.OpResult}, 7), &isolate.Result{Outcome: isolate.Exited}))
	f.Add(append([]byte{wire.OpReply}, `{"id":7,"error":{"kind":1,"reason":"x","op":"y","text":"z"}}`...))
	f.Add(append([]byte{wire.OpReply}, `{"id":7,"id":8}`...))
	f.Add(append([]byte{wire.OpReply}, `{"id":7,"result":{},"plan":{},"stats":{}}`...))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := answerID(string(b))
		if err != nil {
			return
		}
		r, err := parseReply(string(b))
		if err == nil && b[0] == wire.OpReply && r.ID != id {
			t.Errorf("the id is %d and %d", id, r.ID)
		}
		if err == nil && b[0] == wire.OpResult && r.Result == nil {
			t.Error("a result that is none")
		}
	})
}
