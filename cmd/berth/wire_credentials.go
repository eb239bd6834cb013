package main

import (
	"cmp"
	"context"
	"os"
	"path/filepath"

	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/images"
	"berth/internal/apiclient"
)

// nodeCredentials reads the configuration of the node's credentials for registries.
func (b *berth) nodeCredentials() (*images.NodeCredentials, error) {
	home := cmp.Or(os.Getenv("HOME"), "/root")
	o := images.NodeCredentialsOptions{
		ProviderConfig: b.config.Images.CredentialProviderConfig,
		ProviderBinDir: b.config.Images.CredentialProviderBinDir,
		DockerDirs:     []string{b.config.RootDir, filepath.Join(home, ".docker"), home, "/.docker", "/"},
		OnCall:         b.metrics.ObserveCredentialProvider,
	}
	if !b.config.Standalone() {
		o.Token, o.Account = b.registryToken, b.serviceAccount
	}
	return images.NewNodeCredentials(o)
}

// registryToken requests a token of a pod's service account for a registry.
func (b *berth) registryToken(ctx context.Context, pod *corev1.Pod, audience string) (string, error) {
	q := authnv1.TokenRequest{Spec: authnv1.TokenRequestSpec{
		Audiences:      []string{audience},
		BoundObjectRef: &authnv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	var r authnv1.TokenRequest
	err := b.cluster.client.Create(ctx, apiclient.ServiceAccounts, pod.Namespace, &q, &r, pod.Spec.ServiceAccountName,
		"token")
	return r.Status.Token, err
}

func (b *berth) serviceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	var sa corev1.ServiceAccount
	if err := b.cluster.client.Get(ctx, apiclient.ServiceAccounts, namespace, name, &sa); err != nil {
		return nil, err
	}
	return &sa, nil
}
