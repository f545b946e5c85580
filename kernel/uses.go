package kernel

import (
	vocabulary "palyra/call"
	"palyra/call/egress"
	"palyra/kernel/capsule"
)

// A call can use secrets that its program never has: palyra-egress puts them into requests, in place
// of placeholders in the program's environment. The capsule names each use, with the version and
// record of its secret. The placeholders are drawn for one call and are in its spec alone, so that
// equal calls have equal capsules.

// blankPlaceholders returns variables as long as those with the placeholders of uses.
func blankPlaceholders(uses []vocabulary.EgressSecret) (env []string) {
	for i, x := range uses {
		if i > 0 && capsule.Name(uses[i-1].Use) == capsule.Name(x.Use) {
			continue
		}
		u, err := egress.ParseUse(x.Use)
		if err != nil {
			panic("kernel: internal error: a use that wasn't checked: " + err.Error())
		}
		env = append(env, u.Name+"="+egress.NewPlaceholder(u.Form))
	}
	return env
}
