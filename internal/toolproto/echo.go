package toolproto

// Echo is the name of the tool.
const Echo = "palyra.echo"

// EchoInput is the input of palyra.echo.
type EchoInput struct {
	Text string `json:"text" tool:"required,max=65536" doc:"what to give back"`
}

// EchoResult is the result of palyra.echo.
type EchoResult struct {
	Text string `json:"text"`
}
