// Package fantasy asks the models of providers: Anthropic, OpenAI, Google,
// OpenRouter, everything that speaks OpenAI's protocol, and servers on this
// machine. It uses the model layer of charm.land/fantasy and hides it.
//
//	m, err := fantasy.New("anthropic:claude-opus-5-5", fantasy.Options{})
//
// A model's name is "provider:model". [Providers] lists the providers, with
// the environment variables that their keys come from; a missing key is an
// error that names the variable. Responses are streamed; a request that fails
// for a passing reason (a rate limit, an overloaded or failing server, a
// connection that broke in the middle of a response) is sent again, after the
// time that the provider asks for, and the stream says that it started over.
// Where a provider has to be asked to cache prompts, it is.
package fantasy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	llm "charm.land/fantasy"
	"charm.land/fantasy/providers/anthropic"
	"charm.land/fantasy/providers/google"
	"charm.land/fantasy/providers/openai"
	"charm.land/fantasy/providers/openaicompat"
	"charm.land/fantasy/providers/openrouter"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// ErrConfig is matched by the errors of New: a name that is none, a provider
// that is not known, or a key that is missing.
var ErrConfig = errors.New("model is not configured")

// Options say how to reach a provider. The zero value takes everything from
// the environment.
type Options struct {
	// APIKey is the provider's key; empty means from the environment.
	APIKey string
	// BaseURL is where the provider is; empty means from the environment, or
	// its usual place.
	BaseURL string
	// Client does the HTTP; nil means one with no time limit of its own, since
	// responses may take long: use the context.
	Client *http.Client
	// Attempts is how often a request is tried; 0 means 4.
	Attempts int
	// Delay is how long to wait before the second attempt, unless the provider
	// says; each wait is twice the one before. 0 means 2 seconds.
	Delay time.Duration
	// Getenv reads the environment; nil means os.Getenv.
	Getenv func(string) string
}

// Provider describes a provider of models.
type Provider struct {
	Name    string   // as in "name:model"
	Keys    []string // environment variables for the key, the first that is set counts
	URLVar  string   // environment variable for the base URL; may be empty
	URL     string   // base URL when no variable says; may be empty
	Local   bool     // a server on this machine, which needs no key
	Example string   // a model's name
}

// Providers lists the providers that New knows.
func Providers() []Provider {
	return []Provider{
		{Name: "anthropic", Keys: []string{"ANTHROPIC_API_KEY"}, URLVar: "ANTHROPIC_BASE_URL", Example: "claude-opus-5-5"},
		{Name: "openai", Keys: []string{"OPENAI_API_KEY"}, URLVar: "OPENAI_BASE_URL", URL: "https://api.openai.com/v1", Example: "gpt-5"},
		{Name: "openai-chat", Keys: []string{"OPENAI_API_KEY"}, URLVar: "OPENAI_BASE_URL", URL: "https://api.openai.com/v1", Example: "gpt-4o"},
		{Name: "openai-responses", Keys: []string{"OPENAI_API_KEY"}, URLVar: "OPENAI_BASE_URL", URL: "https://api.openai.com/v1", Example: "gpt-5"},
		{Name: "google", Keys: []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}, URLVar: "GOOGLE_GEMINI_BASE_URL", Example: "gemini-3-pro"},
		{Name: "openrouter", Keys: []string{"OPENROUTER_API_KEY"}, Example: "anthropic/claude-opus-5-5"},
		{Name: "openai-compatible", Keys: []string{"OPENAI_COMPATIBLE_API_KEY"}, URLVar: "OPENAI_COMPATIBLE_BASE_URL", Example: "my-model"},
		{Name: "groq", Keys: []string{"GROQ_API_KEY"}, URL: "https://api.groq.com/openai/v1", Example: "llama-3.3-70b-versatile"},
		{Name: "deepseek", Keys: []string{"DEEPSEEK_API_KEY"}, URL: "https://api.deepseek.com/v1", Example: "deepseek-chat"},
		{Name: "mistral", Keys: []string{"MISTRAL_API_KEY"}, URL: "https://api.mistral.ai/v1", Example: "mistral-large-latest"},
		{Name: "xai", Keys: []string{"XAI_API_KEY"}, URL: "https://api.x.ai/v1", Example: "grok-4"},
		{Name: "ollama", URLVar: "OLLAMA_HOST", URL: "http://127.0.0.1:11434/v1", Local: true, Example: "qwen3-coder"},
		{Name: "lmstudio", URLVar: "LMSTUDIO_BASE_URL", URL: "http://127.0.0.1:1234/v1", Local: true, Example: "qwen3-coder"},
		{Name: "llamacpp", URLVar: "LLAMACPP_BASE_URL", URL: "http://127.0.0.1:8080/v1", Local: true, Example: "default"},
		{Name: "vllm", URLVar: "VLLM_BASE_URL", URL: "http://127.0.0.1:8000/v1", Local: true, Example: "qwen3-coder"},
	}
}

// protocol is how a provider is spoken to.
type protocol int

const (
	protoAnthropic protocol = iota
	protoChat
	protoResponses
	protoGoogle
	protoOpenRouter
	protoCompatible
)

// Model is a provider's model. It is safe for concurrent use.
type Model struct {
	name     string // "provider:model"
	id       string
	proto    protocol
	lm       llm.LanguageModel
	key      string
	keys     []string
	attempts int
	delay    time.Duration
}

// New returns the model with a name of the form "provider:model". It does no
// I/O. Its errors match ErrConfig and say what to set.
func New(name string, opt Options) (*Model, error) {
	getenv := opt.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	provider, id, ok := strings.Cut(name, ":")
	if !ok || provider == "" || id == "" {
		return nil, fmt.Errorf("%w: %q is no model's name: write provider:model, for example %s", ErrConfig, name, suggest(name))
	}
	var p Provider
	var known []string
	for _, q := range Providers() {
		known = append(known, q.Name)
		if q.Name == provider {
			p = q
		}
	}
	if p.Name == "" {
		return nil, fmt.Errorf("%w: there is no provider %q; there are %s", ErrConfig, provider, strings.Join(known, ", "))
	}
	key := opt.APIKey
	for _, v := range p.Keys {
		key = cmp.Or(key, getenv(v))
	}
	url := opt.BaseURL
	if p.URLVar != "" {
		url = cmp.Or(url, getenv(p.URLVar))
	}
	if url != "" && provider == "ollama" && opt.BaseURL == "" {
		url = ollama(url)
	}
	url = cmp.Or(url, p.URL)
	if key == "" && !p.Local && provider != "openai-compatible" {
		return nil, fmt.Errorf("%w: %s needs a key: set %s", ErrConfig, name, strings.Join(p.Keys, " or "))
	}
	if provider == "openai-compatible" && url == "" {
		return nil, fmt.Errorf("%w: %s needs to know where the server is: set %s, for example to http://127.0.0.1:8080/v1", ErrConfig, name, p.URLVar)
	}
	client := opt.Client
	if client == nil {
		client = &http.Client{}
	}
	m := &Model{name: name, id: id, key: key, keys: p.Keys, attempts: opt.Attempts, delay: opt.Delay}
	if m.attempts <= 0 {
		m.attempts = 4
	}
	if m.delay <= 0 {
		m.delay = 2 * time.Second
	}
	prov, err := m.provider(provider, key, url, client)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, name, err)
	}
	// Making the model's client does no I/O either.
	if m.lm, err = prov.LanguageModel(context.Background(), id); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, name, err)
	}
	return m, nil
}

func (m *Model) provider(provider, key, url string, client *http.Client) (llm.Provider, error) {
	const agent = "hutch"
	switch provider {
	case "anthropic":
		m.proto = protoAnthropic
		return anthropic.New(anthropic.WithAPIKey(key), anthropic.WithBaseURL(url), anthropic.WithHTTPClient(client), anthropic.WithUserAgent(agent))
	case "google":
		m.proto = protoGoogle
		opts := []google.Option{google.WithGeminiAPIKey(key), google.WithHTTPClient(client), google.WithUserAgent(agent)}
		if url != "" {
			opts = append(opts, google.WithBaseURL(url))
		}
		return google.New(opts...)
	case "openrouter":
		m.proto = protoOpenRouter
		if url != "" { // the provider has a place of its own; a test has another
			return openrouterAt(key, url, client)
		}
		return openrouter.New(openrouter.WithAPIKey(key), openrouter.WithHTTPClient(client), openrouter.WithUserAgent(agent))
	case "openai", "openai-chat", "openai-responses":
		opts := []openai.Option{openai.WithAPIKey(key), openai.WithBaseURL(url), openai.WithHTTPClient(client), openai.WithUserAgent(agent)}
		m.proto = protoChat
		if provider == "openai-responses" || provider == "openai" && openai.IsResponsesModel(m.id) {
			m.proto = protoResponses
			opts = append(opts, openai.WithUseResponsesAPI(), openai.WithResponsesAPIFunc(func(string) bool { return true }))
		}
		return openai.New(opts...)
	}
	m.proto = protoCompatible
	// The SDK wants some key, and would else take OpenAI's from the environment
	// and send it to a stranger.
	key = cmp.Or(key, "none")
	return openaicompat.New(openaicompat.WithName(provider), openaicompat.WithAPIKey(key), openaicompat.WithBaseURL(url),
		openaicompat.WithHTTPClient(client), openaicompat.WithUserAgent(agent))
}

// openrouterAt is OpenRouter at another address, behind a proxy for example.
func openrouterAt(key, url string, client *http.Client) (llm.Provider, error) {
	moved := *client
	inner := moved.Transport
	if inner == nil {
		inner = http.DefaultTransport
	}
	moved.Transport = rebase{strings.TrimSuffix(url, "/"), inner}
	return openrouter.New(openrouter.WithAPIKey(key), openrouter.WithHTTPClient(&moved), openrouter.WithUserAgent("hutch"))
}

// rebase sends requests for OpenRouter elsewhere.
type rebase struct {
	url   string
	inner http.RoundTripper
}

func (r rebase) RoundTrip(req *http.Request) (*http.Response, error) {
	rest := strings.TrimPrefix(req.URL.String(), openrouter.DefaultURL)
	moved := req.Clone(req.Context())
	u, err := req.URL.Parse(r.url + rest)
	if err != nil {
		return nil, err
	}
	moved.URL, moved.Host = u, ""
	return r.inner.RoundTrip(moved)
}

// ollama makes a base URL of what Ollama's own variable holds: a host, with or
// without scheme and port.
func ollama(host string) string {
	if !strings.Contains(host, "://") {
		host = "http://" + host
	}
	host = strings.TrimSuffix(host, "/")
	scheme, rest, _ := strings.Cut(host, "://")
	if !strings.Contains(rest, ":") {
		rest += ":11434"
	}
	if strings.HasPrefix(rest, "0.0.0.0:") {
		rest = "127.0.0.1:" + strings.TrimPrefix(rest, "0.0.0.0:")
	}
	host = scheme + "://" + rest
	if !strings.HasSuffix(host, "/v1") {
		host += "/v1"
	}
	return host
}

// suggest guesses what somebody meant who gave no provider.
func suggest(name string) string {
	name = strings.Trim(name, ":")
	for prefix, provider := range map[string]string{"claude": "anthropic", "gpt": "openai", "o3": "openai", "o4": "openai", "gemini": "google"} {
		if strings.HasPrefix(name, prefix) {
			return provider + ":" + name
		}
	}
	return "anthropic:claude-opus-5-5"
}

// Name returns the name that New was given.
func (m *Model) Name() string { return m.name }

// Generate sends the request and returns the whole response.
func (m *Model) Generate(ctx context.Context, req *model.Request) (*model.Response, error) {
	return model.Collect(m.Stream(ctx, req))
}

// problem turns what the layer below reports into one line for a person. What
// it reports has the request in it, key included, and is not kept.
func (m *Model) problem(ctx context.Context, err error, attempt int) error {
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	out := &model.Error{Model: m.name, Attempts: attempt}
	var perr *llm.ProviderError
	if !errors.As(err, &perr) {
		out.Message = m.redact(err.Error())
		var nerr net.Error
		if errors.As(err, &nerr) {
			out.Hint = "check the network, and whether the server runs"
		}
		return out
	}
	out.Status = perr.StatusCode
	out.TooLong = perr.ContextTooLargeErr
	out.Message = m.redact(cmp.Or(bodyMessage(perr.ResponseBody), perr.Message, perr.Title))
	switch {
	case perr.StatusCode == http.StatusUnauthorized || perr.StatusCode == http.StatusForbidden:
		if len(m.keys) > 0 {
			out.Hint = "check the key in " + strings.Join(m.keys, " or ")
		}
	case perr.StatusCode == http.StatusNotFound:
		out.Hint = "check the model's name"
	case perr.StatusCode == http.StatusTooManyRequests:
		out.Hint = "the provider limits the rate: wait, or use another model"
	case out.TooLong:
		out.Hint = "the conversation is too long for this model: make it shorter, or begin a new one"
	}
	return out
}

// redact takes the key out of a text and bounds it.
func (m *Model) redact(s string) string {
	if len(m.key) >= 6 {
		s = strings.ReplaceAll(s, m.key, "[key]")
	}
	const most = 1000
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strings.TrimSpace(strings.ReplaceAll(s, "\n", " "))
}
