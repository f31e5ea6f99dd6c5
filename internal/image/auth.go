package image

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
)

// credentialFile is the part of docker's config.json and podman's auth.json
// that is about credentials.
type credentialFile struct {
	Auths map[string]struct {
		Auth          string `json:"auth"` // base64 of user:password
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
		RegistryToken string `json:"registrytoken"`
	} `json:"auths"`
	CredHelpers map[string]string `json:"credHelpers"` // by registry
	CredsStore  string            `json:"credsStore"`  // for all others
}

// credentialFiles returns where to look, in this order.
func (s *Store) credentialFiles() []string {
	if s.cfg.DockerConfig != "" {
		return []string{filepath.Join(s.cfg.DockerConfig, "config.json")}
	}
	var files []string
	home, _ := os.UserHomeDir() // "" without one
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		files = append(files, filepath.Join(dir, "config.json"))
	} else if home != "" {
		files = append(files, filepath.Join(home, ".docker", "config.json"))
	}
	if f := os.Getenv("REGISTRY_AUTH_FILE"); f != "" {
		files = append(files, f)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		files = append(files, filepath.Join(dir, "containers", "auth.json"))
	}
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		files = append(files, filepath.Join(dir, "containers", "auth.json"))
	} else if home != "" {
		files = append(files, filepath.Join(home, ".config", "containers", "auth.json"))
	}
	return files
}

// credentials returns what the user has for e; the zero value when there is
// nothing. The first file that knows the registry decides.
func (s *Store) credentials(ctx context.Context, e endpoint) (authn.AuthConfig, error) {
	for _, path := range s.credentialFiles() {
		data, err := readFile(path, 4<<20)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return authn.AuthConfig{}, err
		}
		var f credentialFile
		if json.Unmarshal(data, &f) != nil {
			// Not the error of the decoder, which may quote the file.
			return authn.AuthConfig{}, fmt.Errorf("%s is not valid JSON", path)
		}
		c, ok, err := f.lookup(ctx, e)
		if err != nil {
			return authn.AuthConfig{}, fmt.Errorf("%s: %w", path, err)
		}
		if ok {
			return c, nil
		}
	}
	return authn.AuthConfig{}, nil
}

// credentialKeys returns what files may call the registry of e, the most
// special first: podman also files credentials by repository.
func credentialKeys(e endpoint) []string {
	var keys []string
	for path := e.host + "/" + e.repo; strings.Contains(path, "/"); path = path[:strings.LastIndexByte(path, '/')] {
		keys = append(keys, path)
	}
	hosts := []string{e.host}
	if e.host == dockerHub {
		hosts = []string{"https://index.docker.io/v1/", dockerHub, "index.docker.io", "registry-1.docker.io"}
	}
	for _, h := range hosts {
		keys = append(keys, h)
		if !strings.Contains(h, "://") {
			for _, prefix := range []string{"https://", "http://"} {
				for _, suffix := range []string{"", "/", "/v1/", "/v2/"} {
					keys = append(keys, prefix+h+suffix)
				}
			}
		}
	}
	return keys
}

func (f *credentialFile) lookup(ctx context.Context, e endpoint) (c authn.AuthConfig, ok bool, err error) {
	keys := credentialKeys(e)
	for _, k := range keys {
		if helper := f.CredHelpers[k]; helper != "" {
			return askHelper(ctx, helper, k)
		}
	}
	for _, k := range keys {
		a, ok := f.Auths[k]
		if !ok {
			continue
		}
		c = authn.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
		if a.Auth != "" {
			plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(a.Auth))
			if err != nil {
				return c, false, fmt.Errorf("the auth of %s is not valid base64", k)
			}
			user, pass, ok := strings.Cut(strings.TrimRight(string(plain), "\x00"), ":")
			if !ok {
				return c, false, fmt.Errorf("the auth of %s is not user:password", k)
			}
			c.Username, c.Password = user, pass
		}
		if c != (authn.AuthConfig{}) {
			return c, true, nil
		}
	}
	if f.CredsStore != "" {
		key := e.host
		if key == dockerHub {
			key = "https://index.docker.io/v1/"
		}
		return askHelper(ctx, f.CredsStore, key)
	}
	return c, false, nil
}

// askHelper runs a credential helper, by docker's protocol. Nothing that it
// prints gets into an error: it may be a secret.
func askHelper(ctx context.Context, helper, server string) (c authn.AuthConfig, ok bool, err error) {
	if strings.ContainsAny(helper, "/\x00") {
		return c, false, fmt.Errorf("%q is not the name of a credential helper", clip(helper))
	}
	program := "docker-credential-" + helper
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return c, false, ctx.Err()
		case errors.As(err, &exit):
			if strings.Contains(out.String(), "credentials not found") {
				return c, false, nil
			}
			return c, false, fmt.Errorf("the credential helper %s failed for %s: %s", program, server, exit.ProcessState)
		}
		return c, false, fmt.Errorf("the credential helper cannot be run: %w", err)
	}
	var answer struct{ Username, Secret string }
	if json.Unmarshal(out.Bytes(), &answer) != nil {
		return c, false, fmt.Errorf("the credential helper %s gave no valid answer for %s", program, server)
	}
	if answer.Secret == "" {
		return c, false, nil
	}
	if answer.Username == "<token>" {
		return authn.AuthConfig{IdentityToken: answer.Secret}, true, nil
	}
	return authn.AuthConfig{Username: answer.Username, Password: answer.Secret}, true, nil
}
