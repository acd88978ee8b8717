// The process that holds a pod's namespaces, as the only file of the local cluster's sandbox image.
module inferasim.dev/e2e/pause

go 1.26.0
