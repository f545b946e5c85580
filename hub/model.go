package hub

// The kinds of models.
const (
	ModelTurns      = "turns"      // it answers with words and calls
	ModelEmbeddings = "embeddings" // it makes vectors of texts
)

// Model is a language model that the operator declared.
type Model struct {
	Name     string `json:"name"`
	Provider string `json:"provider"` // as in the configuration
	Model    string `json:"model"`    // the provider's name of it
	Kind     string `json:"kind"`     // ModelTurns or ModelEmbeddings
	Context  int64  `json:"context"`  // the window, in tokens
	Default  bool   `json:"default"`  // it's asked where a run names none
	// Reason is the reason code with which the caller's turns of it would be refused now, "" if they
	// wouldn't; Why and Hint say it for people.
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"`
	Hint   string `json:"hint,omitempty"`
}
