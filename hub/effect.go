package hub

// Effect says what an operation does to authority and work, and so what refuses it in an emergency.
type Effect uint8

// The effects. GET operations have Keeps.
const (
	// Gives authority, or what decides calls: neither in safe mode nor while an emergency stop
	// denies new runs. It's the zero value, so an operation without a decision is refused.
	Gives Effect = iota
	// Begins work: not in safe mode, while palyrad drains or when its disk is nearly full. During a
	// stop palyra/hub/run refuses the run, and a client that asks for one that it has already is told.
	Begins
	// Mends: not in safe mode, which changes nothing. During a stop it's for whoever looks into it
	// and lifts it.
	Mends
	// Keeps or takes away: it reads, ends or revokes, and is never refused.
	Keeps
)

// EffectOf returns the effect of an operation with this input.
func (o *Operation) EffectOf(in any) Effect {
	if t, ok := in.(interface{ takesAway() bool }); ok && t.takesAway() {
		return Keeps
	}
	return o.Effect
}

// takesAway: a no.
func (r Resolution) takesAway() bool { return !r.Answer.Approve }
