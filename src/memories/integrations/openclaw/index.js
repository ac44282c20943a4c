// Gives OpenClaw a memory: the session block, what each message needs, and two tools. With the
// option `capture`, messages are recorded. If the command is missing or slow, OpenClaw continues as
// if the plugin were not installed.
import { execFile } from "node:child_process"
import { randomUUID } from "node:crypto"

const COMMAND = ["memoriae"] // the installer writes the command of its own environment
const HOOK_MS = 10_000
const TOOL_MS = 30_000
const MAX_RESULTS = 20

/** Runs the command; returns its exit code and output. */
function run(args, input, timeout) {
  return new Promise((resolve) => {
    const [program, ...rest] = COMMAND
    const child = execFile(program, [...rest, ...args], { timeout }, (error, stdout, stderr) =>
      resolve({ code: error ? (error.code ?? 1) : 0, stdout, stderr }),
    )
    child.stdin?.on("error", () => {})
    child.stdin?.end(input)
  })
}

/** Runs `memory hook EVENT`; returns the context that it prints, or "". */
async function hook(event, fields, capture) {
  const args = ["hook", event, "--host", "openclaw", ...(capture ? ["--capture"] : [])]
  const input = JSON.stringify({ hook_event_name: event, ...fields })
  const { stdout } = await run(args, input, HOOK_MS)
  try {
    return JSON.parse(stdout).hookSpecificOutput?.additionalContext ?? ""
  } catch {
    return ""
  }
}

/** Returns whether a session belongs to the owner, not to a group, another person or a subagent. */
function isOwn(sessionKey, everySession) {
  if (/:(subagent|cron|hook):/.test(sessionKey)) return false
  return everySession || !/:(group|channel|direct|thread):/.test(sessionKey)
}

function textOf(message) {
  if (typeof message.content === "string") return message.content
  const parts = (message.content ?? []).filter((part) => part.type === "text")
  return parts.map((part) => part.text).join("\n")
}

function lastAnswer(messages) {
  const answer = messages.findLast((message) => message.role === "assistant")
  return answer ? textOf(answer) : ""
}

function toolResult({ code, stdout, stderr }) {
  const isKnown = code === 0 || code === 3 // 3: not stored, a duplicate
  return { content: [{ type: "text", text: isKnown ? stdout : stderr || "error" }], details: {} }
}

const TOOLS = [
  {
    name: "search_memories",
    description:
      "Find memories by meaning and keyword, best first. Search before you answer about people, projects, decisions or preferences.",
    parameters: {
      type: "object",
      properties: { query: { type: "string" }, limit: { type: "integer" } },
      required: ["query"],
    },
    execute: (_id, { query, limit = 5 }) => {
      const count = String(Math.min(limit, MAX_RESULTS))
      return run(["search", "--format", "compact", "--limit", count, "--", query], "", TOOL_MS)
    },
  },
  {
    name: "create_memory",
    description:
      "Store one lasting, self-contained statement, with names and absolute dates. If it replaces a memory, pass supersedes with its id.",
    parameters: {
      type: "object",
      properties: { content: { type: "string" }, supersedes: { type: "string" } },
      required: ["content"],
    },
    execute: (_id, { content, supersedes }) => {
      const options = supersedes ? [`--supersedes=${supersedes}`] : []
      return run(["create", "--format", "compact", ...options, "--", content], "", TOOL_MS)
    },
  },
]

/** Returns a session's block; the random id asks for it even if another process just got it. */
function startOf(fields, source) {
  return hook("session-start", { ...fields, source, turn_id: randomUUID() })
}

function register(api) {
  const { capture = false, everySession = false } = api.pluginConfig ?? {}
  const sessions = new Map() // by id: the fields of its events, its block and its last prompt

  function sessionOf(context) {
    const id = context.sessionId ?? context.sessionKey
    if (!id || !isOwn(context.sessionKey ?? "", everySession)) return null
    if (!sessions.has(id)) {
      const fields = { session_id: id, cwd: context.workspaceDir ?? process.cwd() }
      const block = startOf(fields, "startup")
      sessions.set(id, { fields, block, prompt: "" })
    }
    return sessions.get(id)
  }

  api.on("before_prompt_build", async (event, context) => {
    const session = sessionOf(context)
    if (!session) return
    session.prompt = event.currentUserMessage ?? event.prompt
    const block = await session.block
    const fields = { ...session.fields, prompt: session.prompt, turn_id: context.runId }
    const recalled = await hook("user-prompt", fields, capture)
    return { appendSystemContext: block || undefined, prependContext: recalled || undefined }
  })
  api.on("agent_end", async (event, context) => {
    const session = capture && sessionOf(context)
    if (!session) return
    const answer = { last_assistant_message: lastAnswer(event.messages), turn_id: context.runId }
    await hook("stop", { ...session.fields, prompt: session.prompt, ...answer }, true)
  })
  api.on("after_compaction", (_event, context) => {
    const session = sessionOf(context)
    if (session) session.block = startOf(session.fields, "compact")
  })
  api.on("session_end", async (_event, context) => {
    const session = sessions.get(context.sessionId)
    sessions.delete(context.sessionId)
    if (session && capture) await hook("session-end", { ...session.fields, reason: "other" }, true)
  })
  for (const tool of TOOLS) {
    const execute = async (...args) => toolResult(await tool.execute(...args))
    const make = (context) =>
      isOwn(context.sessionKey ?? "", everySession) ? { ...tool, label: tool.name, execute } : null
    api.registerTool(make, { name: tool.name })
  }
  api.registerMemoryCapability({})
}

export default { id: "memories", name: "Memories", kind: "memory", register }
