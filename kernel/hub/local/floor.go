package local

import (
	"bytes"
	"strconv"

	"palyra/crypt/receipt"
	"palyra/kernel"
)

// maxFloor is how many of the newest entries of the journal are looked at for the
// newest change of members or tokens: it bounds how long a start takes.
const maxFloor = 20_000

// accessFloor returns the generation that the newest act about members or tokens
// made, 0 if there is none among the newest entries. A registry of a lower
// generation is an older copy that somebody put in place.
func accessFloor(k *kernel.Kernel) (uint64, error) {
	s, err := k.JournalStatus()
	if err != nil {
		return 0, err
	}
	const chunk = 256
	for to := s.Size; to > 0 && s.Size-to < maxFloor; {
		from := to - min(chunk, to)
		var floor uint64
		for rec, err := range k.JournalEntries(from, to) {
			if err != nil {
				return 0, err
			}
			if rec.Erased {
				continue
			}
			env, err := receipt.ParseEnvelope(rec.Content)
			if err != nil {
				return 0, err
			}
			if !bytes.Contains(env.Payload, []byte(receipt.ActType)) {
				continue
			}
			_, act, err := receipt.ParsePayload(env.Payload)
			if err != nil {
				return 0, err
			}
			if act == nil {
				continue
			}
			if n, err := strconv.ParseUint(act.Detail[generation], 10, 63); err == nil {
				floor = max(floor, n)
			}
		}
		if floor > 0 {
			return floor, nil
		}
		to = from
	}
	return 0, nil
}

// generation is the detail of acts about members and tokens that says which
// generation of the registry they made.
const generation = "generation"
