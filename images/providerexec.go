package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

const (
	providerTimeout = time.Minute // of a call, as upstream
	maxResponse     = 1 << 20     // bytes
)

// call runs the plugin. Neither its output nor the token is part of an error.
func (p *provider) call(
	ctx context.Context, image, token string, annotations map[string]string,
) (*credentialproviderv1.CredentialProviderResponse, error) {
	request, err := json.Marshal(&credentialproviderv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: p.APIVersion, Kind: "CredentialProviderRequest"},
		Image:    image, ServiceAccountToken: token, ServiceAccountAnnotations: annotations,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	out := limitedBuffer{limit: maxResponse}
	cmd := exec.CommandContext(ctx, p.path, p.Args...)
	cmd.Stdin, cmd.Stdout = bytes.NewReader(request), &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a child may keep the output open
	cmd.Env = os.Environ()
	for _, e := range p.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	if out.full {
		return nil, fmt.Errorf("the response has more than %d bytes", maxResponse)
	}
	return p.parse(out.data)
}

// parse parses a response. The errors do not quote it, because it has credentials.
func (p *provider) parse(data []byte) (*credentialproviderv1.CredentialProviderResponse, error) {
	var r credentialproviderv1.CredentialProviderResponse
	if json.Unmarshal(data, &r) != nil {
		return nil, errors.New("the response is not a CredentialProviderResponse in JSON")
	}
	if r.APIVersion != p.APIVersion || r.Kind != "CredentialProviderResponse" {
		return nil, fmt.Errorf("the response is not a CredentialProviderResponse of %s", p.APIVersion)
	}
	switch r.CacheKeyType {
	case credentialproviderv1.ImagePluginCacheKeyType, credentialproviderv1.RegistryPluginCacheKeyType,
		credentialproviderv1.GlobalPluginCacheKeyType:
		return &r, nil
	}
	return nil, errors.New("the response has no valid cacheKeyType")
}

// limitedBuffer keeps the beginning of an output.
type limitedBuffer struct {
	data  []byte
	limit int
	full  bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	keep := min(len(p), b.limit-len(b.data))
	b.data = append(b.data, p[:keep]...)
	b.full = b.full || keep < len(p)
	return len(p), nil
}
