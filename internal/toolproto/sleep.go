package toolproto

import "strconv"

// Sleep is the name of the tool.
const Sleep = "palyra.sleep"

// SleepInput is the input of palyra.sleep.
type SleepInput struct {
	MS int64 `json:"ms" tool:"required,min=0,max=60000" doc:"how long, in milliseconds"`
}

// Brief says how long the tool sleeps.
func (in *SleepInput) Brief() []string { return []string{"ms=" + strconv.FormatInt(in.MS, 10)} }

// SleepResult is the result of palyra.sleep.
type SleepResult struct {
	SleptMS int64 `json:"slept_ms"`
}
