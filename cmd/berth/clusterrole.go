package main

import (
	"context"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"berth/internal/apiclient"
	"berth/services/enablement"
)

// clusterRole permits nodes to read what Services, DNS and network policies need. berth-control permits it by
// itself, without pods and namespaces.
const clusterRole = `# Services, DNS and network policies on nodes with berth. Nodes can read the specs of all
# pods with it.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: berth.dev:node-services
rules:
- apiGroups: [""]
  resources: [pods, namespaces, services]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: berth.dev:node-services
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: berth.dev:node-services
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: Group
  name: system:nodes
`

// clusterRoleHint is printed by a join of a server that is not berth-control.
const clusterRoleHint = `
The server is not berth-control. serviceProxy, clusterDNSServer and networkPolicy are off unless you set them to
on. They need a ClusterRole:
  berth install --print-cluster-role | kubectl apply -f -
`

// isOtherServer reports whether the server is known not to be berth-control.
func isOtherServer(ctx context.Context, server *rest.Config, token string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	config := rest.CopyConfig(server)
	config.BearerToken = token
	client, err := apiclient.New(apiclient.Options{Config: config, UserAgent: "berth/" + version})
	if err != nil {
		return false
	}
	defer client.Close()
	v, err := client.ServerVersion(ctx)
	return err == nil && !strings.HasSuffix(v, enablement.VersionSuffix)
}
