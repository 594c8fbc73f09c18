"""A ReAct agent of AgentScope 1.x on a client that it is handed: the class of Trinity-RFT's "ReAct Agent Training".

Nothing in it knows of ASTune. The listing there is shortened; the marked arguments are what AgentScope 1.0.21 wants
beyond it.
"""

import openai
from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit


class AgentScopeReActAgent:
    def __init__(
        self,
        openai_client: openai.AsyncOpenAI,  # provided by ASTune
        model_name: str,
        generate_kwargs: dict,
        system_prompt: str,
        toolkit: Toolkit,
        max_iters: int,
    ):
        """Initialize the AgentScope ReAct agent with specified tools and model.

        Args:
            openai_client (openai.AsyncOpenAI): An instance of AsyncOpenAI client.
        """
        self.agent_model = OpenAIChatModel(
            api_key="EMPTY",
            model_name=model_name,
            generate_kwargs=generate_kwargs,
            stream=False,
        )
        # patch the OpenAIChatModel to use the openai_client provided by ASTune
        self.agent_model.client = openai_client
        self.agent = ReActAgent(
            name="react_agent",
            model=self.agent_model,
            sys_prompt=system_prompt,  # required
            formatter=OpenAIChatFormatter(),  # required
            toolkit=toolkit,
            max_iters=max_iters,  # 10 unless it is told otherwise
        )

    async def reply(self, query):
        """Generate a response based on the query."""
        # no need to modify your agent logic
        return await self.agent.reply(Msg("user", query, role="user"))
