package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"berth/internal/apiclient"
	"berth/internal/nodeconfig"
	"berth/node/handover"
	"berth/node/registration"
	"berth/podspec"
)

// cleanNode removes the labels and the annotation of berth from the Node. A later installation of berth
// would otherwise wait for the lease of this one. An error is only printed: the kubelet works with them.
func (x *Executor) cleanNode(ctx context.Context, r *handover.Record) error {
	if err := x.cleanMetadata(ctx, r); err != nil {
		_, err = fmt.Fprintf(x.Out, "  labels and annotations of berth remain on the Node: %v\n", err)
		if err != nil {
			return err
		}
	}
	r.NodeCleaned = true
	return r.Write(x.StateDir)
}

func (x *Executor) cleanMetadata(ctx context.Context, r *handover.Record) error {
	c, _, err := nodeconfig.Parse([]byte(r.Configuration), &nodeconfig.Flags{Config: x.ConfigFile})
	if err != nil || c.Kubeconfig == "" {
		return err
	}
	path := "/api/v1/nodes/" + c.NodeName
	var n corev1.Node
	if err := apiRequest(ctx, c.Kubeconfig, http.MethodGet, path, nil, &n); err != nil {
		return err
	}
	patch := nodeCleanup(&n)
	if patch == nil {
		return nil
	}
	return apiRequest(ctx, c.Kubeconfig, http.MethodPatch, path, patch, &n)
}

// nodeCleanup returns the merge patch that removes what berth has added to the metadata of a Node; nil:
// nothing.
func nodeCleanup(n *corev1.Node) map[string]any {
	labels, meta := map[string]any{}, map[string]any{}
	for name := range n.Labels {
		if strings.HasPrefix(name, podspec.FeatureLabelPrefix) {
			labels[name] = nil
		}
	}
	if len(labels) > 0 {
		meta["labels"] = labels
	}
	if _, set := n.Annotations[registration.InstallationAnnotation]; set {
		meta["annotations"] = map[string]any{registration.InstallationAnnotation: nil}
	}
	if len(meta) == 0 {
		return nil
	}
	return map[string]any{"metadata": meta}
}

// apiRequest sends a request to the API server with the kubelet's credentials and decodes the response.
// path can have a query. A body is a merge patch.
func apiRequest(ctx context.Context, kubeconfig, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	config, err := apiclient.LoadConfig(kubeconfig)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	at, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	path, query, _ := strings.Cut(path, "?")
	at = at.JoinPath(path)
	at.RawQuery = query
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, at.String(), content)
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", string(types.MergePatchType))
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, at.Path, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(into)
}
